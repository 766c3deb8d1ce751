"""Fit the few parameters of a swap: layer by layer to the outputs of the baseline, or end to end on the loss."""
