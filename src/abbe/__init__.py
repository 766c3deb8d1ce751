"""abbe: the resolution limit of attention. Exact, fast normalizers and attention that takes any of them."""

from ._attention import attention
from ._errors import AbbeError
from .normalizers import Normalizer, NormalizerInfo, list_normalizers, normalizer

__version__ = "0.1.0"

__all__ = ["AbbeError", "Normalizer", "NormalizerInfo", "attention", "list_normalizers", "normalizer"]
