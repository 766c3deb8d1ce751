"""Two maps of the same rows, mixed while both are in cache: share * a + (1 - share) * b, and the gradient of this."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..._entries import from_source
from ..._vector import ONE, kernel

_TILE = 1 << 14  # numbers of one array that both maps work on before they are mixed

_FORWARD = """
def {name}(logits, params_a, params_b, share, weights_a, weights_b, mixed, start, stop):
    tile = max(1, {tile} // logits.shape[1])
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        kernel_a(logits, params_a, weights_a, first, last)
        kernel_b(logits, params_b, weights_b, first, last)
        for r in range(first, last):
            mix(weights_a[r], weights_b[r], share[0], mixed[r])
"""

_BACKWARD = """
def {name}(
    grad, logits, weights_a, weights_b, params_a, params_b, share, grad_logits, grad_b, of_params_a, of_params_b,
    start, stop,
):
    tile = max(1, {tile} // logits.shape[1])
    for first in range(start, stop, tile):
        last = min(first + tile, stop)
        kernel_a(grad, logits, weights_a, params_a, grad_logits, of_params_a, first, last)
        kernel_b(grad, logits, weights_b, params_b, grad_b, of_params_b, first, last)
        for r in range(first, last):
            mix(grad_logits[r], grad_b[r], share[0], grad_logits[r])
"""


@kernel
def mix(a: Any, b: Any, share: Any, out: Any) -> None:
    rest = ONE - share
    for j in range(a.shape[0]):
        out[j] = share * a[j] + rest * b[j]


def forward(kernel_a: Any, kernel_b: Any) -> Any:
    return _made(_FORWARD, kernel_a, kernel_b)


def backward(kernel_a: Any, kernel_b: Any) -> Any:
    return _made(_BACKWARD, kernel_a, kernel_b)


@cache
def _made(template: str, kernel_a: Any, kernel_b: Any) -> Any:
    """A kernel for each pair, since a kernel cannot take others as arguments and be cached."""
    parts = [f"{k.py_func.__module__.rpartition('.')[2]}_{k.py_func.__name__}" for k in (kernel_a, kernel_b)]
    name = "_and_".join(["blend", *parts])
    source = template.format(name=name, tile=_TILE)
    return kernel(from_source(source, name, __file__, {"kernel_a": kernel_a, "kernel_b": kernel_b, "mix": mix}))
