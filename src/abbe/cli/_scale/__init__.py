"""Commands for large models and many machines."""
