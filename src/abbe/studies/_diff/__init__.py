"""diff: two models, or checkpoints of a training run, head by head on the same windows."""
