"""A search for a better normalizer, for people: page, charts, terminal."""
