"""Attention with any normalizer: `abbe.attention`."""

from .attend import attention

__all__ = ["attention"]
