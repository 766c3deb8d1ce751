"""A comparison of normalizers for people: page, charts, terminal."""
