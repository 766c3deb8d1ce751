"""abbe.compare: what replacing softmax would change."""
