"""From a finding to a model you can ship: commands, one per file."""
