"""Many machines: --shard, and abbe merge."""
