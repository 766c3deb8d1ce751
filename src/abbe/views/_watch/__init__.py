"""A training run that a monitor watches: its page, its charts, its tables."""
