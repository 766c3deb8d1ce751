"""abbe.reproduce: the figures of the paper on any model, and its statements judged."""
