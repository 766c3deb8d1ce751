"""Small networks in which several seeds are trained at once: every parameter has the seed as its first dimension."""
