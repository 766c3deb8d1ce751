"""A swapped model as a folder that others can load: folded into plain weights, or with its plan beside them."""
