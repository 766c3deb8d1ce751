"""The text and the model that come with abbe."""
