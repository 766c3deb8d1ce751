"""Pull a real pre-trained model into the user's cache."""
