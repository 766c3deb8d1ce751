"""abbe.lift: search for another normalizer in some layers that helps a model, and test it once."""
