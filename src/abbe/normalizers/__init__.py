"""Normalizers: maps from attention logits to attention weights, behind one registry."""

from ._base import Normalizer
from ._registry import NormalizerInfo, list_normalizers, normalizer
from ._softmax import Softmax

__all__ = ["Normalizer", "NormalizerInfo", "Softmax", "list_normalizers", "normalizer"]
