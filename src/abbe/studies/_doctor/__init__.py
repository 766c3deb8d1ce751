"""abbe.doctor: what on this machine keeps abbe from working."""
