"""Compiled passes over attention rows and sets of keys."""
