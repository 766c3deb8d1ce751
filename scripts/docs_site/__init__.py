"""What `make docs` adds to docs/: a reference made from the code, the navigation, and formulas as MathML."""
