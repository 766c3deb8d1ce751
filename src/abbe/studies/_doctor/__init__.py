"""abbe.doctor: what on this machine keeps abbe from working, and what to do about it."""
