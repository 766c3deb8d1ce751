"""A reproduction of the paper for people: page, figures, terminal."""
