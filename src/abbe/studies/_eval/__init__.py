"""abbe eval: the tasks of lm-evaluation-harness, on a model and under plans."""
