"""Sums over long rows: as exact at 131,072 keys as at 7, whatever the width of the processor's vectors.

Each row below makes a plain float32 sum fail in its own way: equal terms round in one direction, keys at the very edge
of a support move together with the threshold. `test_widths.py` runs this file for narrower vectors.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Callable

import pytest
import torch
from normalizer_cases import narrow, random_logits, slow
from torch import Tensor

import abbe
from abbe.normalizers import step_attention

EPS = torch.finfo(torch.float32).eps
SIMPLEX = (
    "softmax",
    "ssmax",
    "adaptive-temperature",
    "norm-softmax",
    "sparsemax",
    "entmax:alpha=1.05",
    "entmax:alpha=1.25",
    "entmax:alpha=1.5",
    "entmax:alpha=1.75",
    "entmax:alpha=1.97",
    "asentmax:alpha=1.5",
    "topk:k=900",
    "topp:p=0.9",
    "threshold:rel=0.1",
    "hybrid:a=softmax,b=sparsemax,mix=0.25",
)
GATES = (
    "softmax1",
    "sink:b=8",
    "clipped",
    "sigmoid",
    "relu",
    "relu:power=1.5",
    "relu:power=3,eps=0.01",
    "softpick",
    "self-adjusted",
    "elastic",
    "stick-breaking",
)


def long_rows(keys: int) -> Tensor:
    """Twelve rows: one key above equal ones, keys at the edge of a support, levels, and drawn ones of four scales."""
    generator = torch.Generator().manual_seed(keys)
    normal, uniform = (draw(4, keys, generator=generator) for draw in (torch.randn, torch.rand))
    place = torch.arange(keys)
    one_above = torch.where(place == keys // 2, 0.0, -3 * torch.rand(4, 1, generator=generator))
    edges = [
        torch.where(place == keys // 2, 0.0, low + width * uniform[0]) for low, width in ((-0.5, 2e-5), (-1, 1e-3))
    ]
    levels = torch.where(place % 3 == 0, 0.7, -0.2)
    scales = torch.tensor([[3.0], [1.0], [0.1], [1e-3]])
    return torch.cat([one_above, torch.stack([*edges, levels, uniform[1]]), scales * normal])


@pytest.mark.parametrize(
    "keys", [7, 129, 1000, 4096, 131_072, *map(slow, (1, 47, 97, 257, 1537, 32_767, 65_537, 100_000))]
)
@pytest.mark.parametrize("spec", SIMPLEX)
def test_rows_of_any_length_sum_to_one(spec: str, keys: int, fused: None) -> None:
    off = (abbe.normalizer(spec)(long_rows(keys)).double().sum(-1) - 1).abs()
    assert float(off.max()) <= 4 * EPS, f"row {int(off.argmax())} is off by {float(off.max()) / EPS:.1f} eps"


@pytest.mark.narrow
@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.25", "entmax:alpha=1.5", slow("sparsemax")])
def test_narrow_vectors_sum_to_one(spec: str, fused: None) -> None:
    """A few maps at three lengths: each one has to be compiled again for a narrower vector.

    One for each kind of sum: of exponentials, of three terms, of a threshold (as in sparsemax).
    """
    for keys in (129, 4096, 131_072):
        off = (abbe.normalizer(spec)(long_rows(keys)).double().sum(-1) - 1).abs()
        assert float(off.max()) <= 4 * EPS, f"{keys} keys: off by {float(off.max()) / EPS:.1f} eps"


@pytest.mark.parametrize("spec", [narrow(spec) if spec == "softpick" else spec for spec in GATES])
def test_gates_of_a_long_row(spec: str, fused: None) -> None:
    """Rows that need not sum to 1: float64 is the oracle. One sum that was kept in float32 lost 160 eps."""
    rows = long_rows(131_072)
    wanted = abbe.normalizer(spec).double()(rows.double()).sum(-1)
    off = (abbe.normalizer(spec)(rows).double().sum(-1) - wanted).abs() / wanted.clamp(min=1)
    assert float(off.max()) <= 4 * EPS


@pytest.mark.parametrize("keys", [129, 4096])
@pytest.mark.parametrize("alpha", [1.01, 1.25, 1.5, 1.6, 1.75, 1.9, 1.97, 1.999, 2])
def test_weights_at_the_edge_of_the_support(alpha: float, keys: int, fused: None) -> None:
    """Keys at the edge have tiny weights that change fast: the same row in float64 is the oracle."""
    made, rows = abbe.normalizer(f"entmax:alpha={alpha}"), long_rows(keys)
    off = (made(rows).double() - made.double()(rows.double())).abs()
    assert float(off.max()) <= 4 * EPS


@pytest.mark.parametrize(
    "spec", [*map(narrow, ("softmax", "entmax:alpha=1.5")), "softpick", "sparsemax", "clipped", "self-adjusted"]
)
def test_gradients_of_a_long_row(spec: str, fused: None) -> None:
    """The mean that a gradient is taken from is a sum over all keys: 1,000 eps were lost in it at this length.

    The upstream gradient is 1 and a hundredth of what is drawn: errors are those of the 1, which softmax takes out.
    """
    rows, grads = long_rows(131_072), []
    upstream = 1 + 0.01 * torch.rand(rows.shape, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float64):
        leaf = rows.to(dtype).requires_grad_()
        (gradients,) = torch.autograd.grad(abbe.normalizer(spec).to(dtype)(leaf), leaf, upstream.to(dtype))
        grads.append(gradients.double())
    off = (grads[0] - grads[1]).abs().amax(-1) / (100 * grads[1].abs().amax(-1)).clamp(min=1e-30)
    assert float(off.max()) <= 8 * EPS


@pytest.mark.narrow
def test_the_step_of_a_long_context_sums_all_values(fused: None) -> None:
    """One query over 100,000 keys of nearly one weight: float64 is the oracle."""
    query, key, value = (
        1e-3 * random_logits(1, 1, 1, 8),
        random_logits(1, 1, 100_000, 8),
        torch.rand(1, 1, 100_000, 8),
    )
    made = abbe.normalizer("softmax")
    got = step_attention(made, query.float(), key.float(), value, 1.0)
    want = made.double()(query @ key.mT) @ value.double()
    assert float((got.view(-1) - want.view(-1)).abs().max()) <= 8 * EPS


# -- Sums are vector code ---------------------------------------------------------------------------------------------


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
