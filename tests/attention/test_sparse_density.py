"""Which heads take full rows: by the share of keys that have a weight, and by whether gradients are to come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from inside import sparse_op
from torch import Tensor
from torch.testing import assert_close

import abbe

LENGTH, WIDTH = 800, 16


@pytest.fixture
def sparse_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many heads went over their support, once per call."""
    seen: list[int] = []
    real = sparse_op.attend

    def spy(rule: object, inputs: sparse_op.Inputs, limit: int) -> object:
        seen.append(inputs.q.shape[1])
        return real(rule, inputs, limit)

    monkeypatch.setattr(sparse_op, "attend", spy)
    return seen


def inputs(spreads: Sequence[float], needs_grad: bool) -> list[Tensor]:
    """A head for each spread of the logits."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(spreads), LENGTH, WIDTH, generator=generator) for _ in range(3))
    return [x.requires_grad_(needs_grad) for x in (q * torch.tensor(spreads)[:, None, None], k, v)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "needs_grad", "expected"),
    [(0.5, False, [2]), (0.5, True, [2]), (0.75, False, []), (0.75, True, [2]), (0.95, False, []), (0.95, True, [])],
)
def test_gradients_make_the_support_pay_longer(
    p: float, needs_grad: bool, expected: list[int], sparse_heads: list[int]
) -> None:
    """Of flat rows, top-p of 0.5, 0.75 and 0.95 give a weight to about 17, 38 and 75 % of the keys."""
    abbe.attention(*inputs([1.0, 1.0], needs_grad), f"topp:p={p}", causal=True)
    assert sparse_heads == expected


@pytest.mark.slow
def test_heads_of_almost_one_density_stay_together(sparse_heads: list[int]) -> None:
    """One head at 24 % and one at 31 %: splitting them would cost more than it saves."""
    given = inputs([1.1, 0.8], False)
    assert_close(
        abbe.attention(*given, "topp:p=0.6", causal=True),
        abbe.attention(*given, "topp:p=0.6", causal=True, return_weights=True)[0],
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    assert sparse_heads in ([], [2])


def test_a_dense_head_leaves_the_others_sparse(sparse_heads: list[int]) -> None:
    given = inputs([8.0, 0.1, 8.0], False)
    out = abbe.attention(*given, "topp:p=0.9", causal=True)
    assert sparse_heads == [2]
    assert_close(out, abbe.attention(*given, "topp:p=0.9", causal=True, return_weights=True)[0], rtol=1e-4, atol=1e-5)
