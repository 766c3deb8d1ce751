"""abbe.report: every head over lengths, sizes and temperatures, and what it means."""
