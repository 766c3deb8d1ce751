"""What a swap costs and how sensitive it is, compared with the baseline."""
