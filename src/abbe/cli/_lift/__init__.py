"""Commands that lead from a finding to a model that can be used: lift, export."""
