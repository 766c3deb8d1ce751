"""Attention with maps that have exact zeros: only keys with a nonzero weight are read, kept and differentiated."""

from .op import DENSE, sparse_attention

__all__ = ["DENSE", "sparse_attention"]
