"""Another normalizer in a real model, for a time."""
