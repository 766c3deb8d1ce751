"""abbe.diagnose: every measure of every head, as a table."""
