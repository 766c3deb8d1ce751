"""abbe.calibrate: fit another normalizer to a model that was trained with softmax."""
