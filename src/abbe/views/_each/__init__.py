"""Reports of many models: the index page and the table."""
