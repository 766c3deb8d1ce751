"""Experiments of the lab for people: page, charts, terminal."""
