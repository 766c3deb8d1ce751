"""Two models side by side: maps, differences, curves over checkpoints."""
