"""Capacity N*: the least N so that the N largest weights of every row keep the loss. One algorithm for all studies."""
