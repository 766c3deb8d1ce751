"""Attention over the support: scores that the kernel makes itself, tile by tile, are those that torch makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inside import _blockwise, _sparse
from inside import sparse_call as call
from normalizer_cases import slow
from torch import Tensor
from torch.testing import assert_close

SPECS = ["entmax:alpha=1.5", "topk:k=3", slow("sparsemax"), slow("entmax:alpha=1.3"), slow("topp:p=0.7")]
NEVER = 2.0  # a share of keys that no head exceeds
# Below, at and above a panel (12, 24 or 48 keys), a tile of queries (64), a segment of keys (512).
EDGES = [(33, 47), (48, 48), (49, 49), (64, 96), (65, 97), (40, 511), (63, 513), (130, 1025)]


@pytest.fixture(autouse=True)
def in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torch's product would be quicker."""
    monkeypatch.setattr(call, "products_pay", lambda: True)
    monkeypatch.setattr(call, "PACKED_FROM", 1)


def whole_numbers(
    queries: int, keys: int, heads: int = 4, kv_heads: int = 2, batch: tuple[int, ...] = (), width: int = 5
) -> list[Tensor]:
    """Scores of small whole numbers: every order of their sums is exact, and there are ties in and across tiles."""
    shapes = (heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, 3)
    generator = torch.Generator().manual_seed(queries + keys)
    return [torch.randint(-2, 3, (*batch, *shape), generator=generator).float().requires_grad_() for shape in shapes]


def by_both(monkeypatch: pytest.MonkeyPatch, inputs: list[Tensor], spec: str, **options: Any) -> list[list[Tensor]]:
    """Output and gradients, with scores of the kernel and with those of torch."""
    solved = []
    for packed_from in (1, 10**6):
        monkeypatch.setattr(call, "PACKED_FROM", packed_from)
        out = _sparse(*inputs, spec, NEVER, scale=0.5, **options)
        solved.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    return solved


@pytest.mark.parametrize("spec", SPECS)
def test_ties_and_edges_of_tiles(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for queries, keys in EDGES:
        for options in ({"causal": True}, {"window": 50}, {}):
            made, given = by_both(monkeypatch, whole_numbers(queries, keys), spec, **options)
            assert_close(made[0], given[0], rtol=0, atol=0, msg=f"{queries} x {keys}, {options}")
            assert_close(made, given, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS[:1])
def test_sinks_batches_and_queries_without_keys(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More queries than keys: the first ones see none; windows that begin inside of a panel."""
    sink = torch.tensor([0.5, -1.0, 3.0, 1.0])
    for queries, keys, options in ((150, 60, {}), (90, 200, {"window": 17}), (97, 97, {"window": 1})):
        inputs = whole_numbers(queries, keys, batch=(2,))
        made, given = by_both(monkeypatch, inputs, spec, causal=True, sink=sink, **options)
        assert_close(made[0], given[0], rtol=0, atol=0)
        assert_close(made, given, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_equal_and_spoilt_rows(spec: str) -> None:
    """All keys equal, then one query of NaN: its row alone is NaN, though it shares a tile."""
    q, k, v = (t.detach() for t in whole_numbers(70, 150))
    equal = torch.ones_like(k)
    with torch.no_grad():
        assert_close(_sparse(q, equal, v, spec, NEVER), _blockwise(q, equal, v, spec), rtol=1e-5, atol=1e-5)
        q[1, 35] = torch.nan
        out = _sparse(q, k, v, spec, NEVER)
    assert out[1, 35].isnan().all()
    assert out.isnan().sum() == out.shape[-1]


def test_scores_are_those_of_torch() -> None:
    """Numbers with all their digits, of every width: within what the order of a sum leaves open."""
    for width in (1, 7, 64, 80):
        generator = torch.Generator().manual_seed(width)
        q, k, v = (torch.randn(2, 100, width, generator=generator) for _ in range(3))
        exact = _blockwise(q.double(), k.double(), v.double(), SPECS[0], causal=True)
        assert_close(_sparse(q, k, v, SPECS[0], NEVER, causal=True).double(), exact, rtol=1e-4, atol=1e-5)
