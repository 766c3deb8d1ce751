"""Every sum over the keys of a row is vector code: one that is not gives the same numbers, at forty times the cost."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Callable

import pytest
from normalizer_cases import slow

MODULES = {
    "abbe._kernels.sums": {"row_dot", "row_sum"},
    "abbe.normalizers._kernels.softmax": {"exponentials", "scale_gradient"},
    "abbe.normalizers._kernels.selection": {"above"},
    "abbe.normalizers._kernels.shaped": {"dot_where_between", "expm1_sizes", "kept_sums", "key_sums", "row_entropy"},
    "abbe.normalizers._kernels.entmax": {
        "alpha_terms",
        "dot_with_offsets",
        "entmax15_sums",
        "entmax_terms",
        "sparsemax_sums",
        "sum_and_dot",
    },
    "abbe.measures._row_kernels": {"squares_moved", "shares", "lengths"},
}
KEY_BY_KEY = {"squares_moved"}  # one pass beside the many of an eigenvalue; its rounding is part of golden numbers
PACKED_SUM = re.compile(r"\bv?(addps|subps|fn?m(add|sub)\d+ps)\b")  # of x86; the same on one number ends in ss


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads the code of x86")
@pytest.mark.parametrize("module", [name if "selection" in name else slow(name) for name in MODULES])
def test_sums_are_vector_code(module: str) -> None:
    from inside import SUMS, WideCompiler
    from numba import float32, njit
    from numba.types import Tuple

    options = {"fastmath": SUMS, "error_model": "numpy", "pipeline_class": WideCompiler}
    for name, function in _sums(module).items():
        arguments = {key: kind for key, kind in function.__annotations__.items() if key not in ("j", "return")}
        kernel = njit(**options, forceinline=True)(function)
        # Inside of another function, as all are in the end: what is inlined is optimised once more.
        compiled = njit(**options)(_caller_of(kernel))
        compiled.compile((Tuple([float32[::1] if kind == "Row" else float32 for kind in arguments.values()]),))
        (code,) = compiled.inspect_asm().values()
        assert bool(PACKED_SUM.search(code)) == (name not in KEY_BY_KEY), f"{module}.{name}"


@pytest.mark.parametrize("module", MODULES)
def test_all_sums_are_listed(module: str) -> None:
    assert _sums(module).keys() == MODULES[module]


def _caller_of(kernel: Callable[..., object]) -> Callable[..., object]:
    return lambda given: kernel(*given)


def _sums(module: str) -> dict[str, object]:
    """The sums that a module makes, as Python functions."""
    functions = {name: getattr(value, "py_func", None) for name, value in vars(importlib.import_module(module)).items()}
    return {
        name: function
        for name, function in functions.items()
        if "Row" in getattr(function, "__annotations__", {}).values() and function.__module__ == module
    }
