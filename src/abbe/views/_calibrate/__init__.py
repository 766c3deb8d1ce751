"""Calibration for people: page, charts, terminal."""
