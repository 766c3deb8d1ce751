"""Kernels over rows, generated from a function of one row; the docstring of this package has their signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._kernels.compiled import around, kernel
from ..._kernels.vector import row_max, usable

_FORWARD = """
def {name}(logits, params, weights, start, stop):
    {scratch}
    for r in range(start, stop):
        row, out = logits[r], weights[r]
        top = {top}
        if usable(top, out):
            of_row(row, top, params[r if params.shape[0] > 1 else 0], out{last})
"""

_BACKWARD = """
def {name}(grad, logits, weights, params, grad_logits, grad_params, start, stop):
    {scratch}
    for r in range(start, stop):
        of_params = grad_params[r : r + 1]
        of_row(grad[r], logits[r], weights[r], params[r if params.shape[0] > 1 else 0], grad_logits[r], of_params{last})
"""


def forward_rows(scratch: Any = None, top: Any = None) -> Callable[[Any], Any]:
    """Make a forward kernel from of_row(row, top, params, out), which is called for rows that have keys and are finite.

    `top` is the largest logit, or the result of top(row, scratch). `scratch`(keys) allocates arrays for all rows of a
    share, which of_row then takes last: allocating them for every row would cost as much as a short row.
    """
    return _rows(_FORWARD, scratch, "row_max(row)" if top is None else "find_top(row, scratch)", top)


def backward_rows(scratch: Any = None) -> Callable[[Any], Any]:
    """Make a backward kernel from of_row(grad, row, weights, params, out, of_params); of_params is (1, P) or (0, P)."""
    return _rows(_BACKWARD, scratch)


def _rows(template: str, scratch: Any, top: str = "", find_top: Any = None) -> Callable[[Any], Any]:
    scope = {"row_max": row_max, "usable": usable, "make_scratch": scratch, "find_top": find_top}
    allocate, last = ("scratch = make_scratch(logits.shape[1])", ", scratch") if scratch else ("", "")

    def rows_of(of_row: Any) -> Any:
        source = template.format(name=of_row.__name__, scratch=allocate, last=last, top=top)
        return kernel(around(of_row, "of_row", source, dict(scope)))

    return rows_of
