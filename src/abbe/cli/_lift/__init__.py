"""From a finding to a model that can be shipped: commands, one per file."""
