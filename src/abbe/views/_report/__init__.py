"""A report for people: page, charts, figures for papers, terminal."""
