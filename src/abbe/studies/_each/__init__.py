"""Many models at once."""
