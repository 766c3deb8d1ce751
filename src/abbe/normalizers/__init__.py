"""Normalizers: maps from attention logits to attention weights, behind one registry.

`normalizer` makes one from a spec, `list_normalizers` lists them. The other names are for code that builds on
normalizers: attention, swaps in a model, fits of learned parameters.
"""

from ._base import Normalizer
from ._options import Learned, Option, format_spec, parse_spec
from ._registry import NormalizerInfo, list_normalizers, normalizer, usual_specs
from ._regularized import budget_weights, entmax_weights, normmax_weights
from ._row_map import fused, inside_transform, kernels_from
from ._selection import Truncated
from ._softmax import LogNScaling, ScalableSoftmax, Softmax
from ._step import step_attention
from ._support import differentiate_support, find_support, support_map, weights_of_map

__all__ = [
    "Learned",
    "LogNScaling",
    "Normalizer",
    "NormalizerInfo",
    "Option",
    "ScalableSoftmax",
    "Softmax",
    "Truncated",
    "budget_weights",
    "differentiate_support",
    "entmax_weights",
    "find_support",
    "format_spec",
    "fused",
    "inside_transform",
    "kernels_from",
    "list_normalizers",
    "normalizer",
    "normmax_weights",
    "parse_spec",
    "step_attention",
    "support_map",
    "usual_specs",
    "weights_of_map",
]
