"""Studies on Ray: every actor is a worker of the run folder with a model of its own."""
