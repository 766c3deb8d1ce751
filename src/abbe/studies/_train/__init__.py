"""The lab: small transformers trained on generated tasks, side by side, with controls."""
