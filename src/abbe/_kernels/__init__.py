"""What all kernels stand on: compiler, vector arithmetic, sums, entries, threads, and the switch that turns it off."""
