"""abbe.capacity: how many keys the loss needs."""
