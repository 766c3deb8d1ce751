"""What all kernels stand on: vector arithmetic, compiled entries, threads, and the switch that turns them off."""
