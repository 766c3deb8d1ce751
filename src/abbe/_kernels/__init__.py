"""The base of all kernels: compiler, vector arithmetic, sums, entries, threads, and the switch that turns them off."""
