"""abbe.cost: seconds and bytes of a study of a model, predicted from its shape."""
