"""Attention with maps that give exact zeros: only the keys with a weight are read, kept and differentiated."""

from .dense import DENSE
from .op import sparse_attention

__all__ = ["DENSE", "sparse_attention"]
