"""Large models and many machines: abbe cost, --shard, and abbe merge."""
