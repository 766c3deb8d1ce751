"""Capacity for people: charts, figures for papers, terminal."""
