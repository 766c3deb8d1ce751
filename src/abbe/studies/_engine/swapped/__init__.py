"""What a swap costs and how sensitive it is, beside the baseline."""
