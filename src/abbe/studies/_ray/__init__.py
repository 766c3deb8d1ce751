"""Studies on Ray: every actor is a worker of the run folder with its own copy of the model."""
