"""A hidden key is an absent key: NaN and infinities in it and its value reach neither output nor gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from inside import attention_blocks
from normalizer_cases import slow
from torch import Tensor

from abbe import attention

LENGTH, HEADS, KV_HEADS, WIDTH = 40, 4, 2, 8
SPECS = ("softmax", "ssmax", "entmax:alpha=1.5", "norm-softmax", *map(slow, ("topk:k=5", "sigmoid", "stick-breaking")))
HIDDEN = slice(17, 20)  # of the keys, in the masks below
SHOWN = torch.ones(LENGTH, dtype=torch.bool).index_fill(0, torch.arange(17, 20), False)
DRAWN = (torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.7) & SHOWN
ADDED = torch.zeros(LENGTH, LENGTH).masked_fill(~SHOWN, -torch.inf)
ALL = slice(None)
# Options, the keys that are spoiled, and the queries that see none of these.
CASES: dict[str, tuple[dict[str, Any], slice, slice]] = {
    "mask": ({"mask": DRAWN}, HIDDEN, ALL),
    "mask of every head": ({"mask": DRAWN.expand(2, HEADS, -1, -1)}, HIDDEN, ALL),
    "padding": ({"mask": SHOWN[None, None, None]}, HIDDEN, ALL),
    "causal": ({"causal": True}, slice(33, 40), slice(0, 33)),
    "causal padding": ({"causal": True, "mask": SHOWN}, HIDDEN, ALL),
    "window": ({"causal": True, "window": 4}, slice(0, 3), slice(6, LENGTH)),
    "position_bias": ({"position_bias": ADDED}, HIDDEN, ALL),
    "floating attn_mask": ({"attn_mask": ADDED, "is_causal": True}, HIDDEN, ALL),
    "all options": ({"mask": SHOWN, "softcap": 3.0, "sink": torch.zeros(HEADS), "window": 30}, HIDDEN, ALL),
}


@pytest.fixture(params=["in one block", "block by block"])
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "block by block":  # with gradients; over the support for maps with exact zeros
        monkeypatch.setattr(attention_blocks, "BLOCK_BYTES", 1 << 12)


def states(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    q, k, v = (torch.randn(2, n, LENGTH, WIDTH, generator=generator, dtype=torch.float64).to(dtype) for n in heads)
    return q, k, v


def solved(spec: str, inputs: tuple[Tensor, ...], options: dict[str, Any], rows: slice, grad: bool) -> list[Tensor]:
    """Output of some queries, and gradients from these alone."""
    leaves = [t.clone().requires_grad_(grad) for t in inputs]
    out = attention(*leaves, spec, **options)[..., rows, :]
    return [out.detach(), *(torch.autograd.grad(out.square().sum(), leaves) if grad else ())]


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", SPECS)
def test_what_hidden_keys_hold_changes_nothing(spec: str, case: str, grad: bool) -> None:
    options, hidden, rows = CASES[case]
    q, k, v = states()
    want = solved(spec, (q, k, v), options, rows, grad)
    for junk in (torch.nan, torch.inf):
        for spoil_key, spoil_value in ((True, True), (True, False), (False, True)):
            key, value = k.clone(), v.clone()
            key[..., hidden, :] = junk if spoil_key else 0
            value[..., hidden, 1:] = junk if spoil_value else 0
            got = solved(spec, (q, key, value), options, rows, grad)
            for mine, exact in zip(got, want, strict=True):
                torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("spec", SPECS)
def test_what_a_query_sees_is_not_hidden(spec: str) -> None:
    q, k, v = states()
    k[..., 33, 2] = torch.nan
    for grad in (False, True):
        out = attention(q.requires_grad_(grad), k, v, spec, causal=True)
        assert bool(out[..., 33:, :].isnan().all())
        assert bool(out[..., :33, :].isfinite().all())


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("spec", SPECS)
def test_padding_of_nan_at_the_end_reaches_no_gradient(spec: str) -> None:
    """Queries, too: rows of NaN that no loss reads must not send 0 times NaN to the keys before them."""
    rows = slice(0, 30)
    spoiled = tuple(t.index_fill(2, torch.arange(30, LENGTH), torch.nan) for t in states())
    got, want = (solved(spec, inputs, {"causal": True}, rows, True) for inputs in (spoiled, states()))
    for mine, exact in zip(got, want, strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)


def test_a_query_of_nan_that_sees_no_key_gives_zeros() -> None:
    q, k, v = (t.requires_grad_() for t in states())
    blind = torch.ones(LENGTH, 1, dtype=torch.bool).index_fill(0, torch.tensor([5]), False)
    spoiled = q.index_fill(2, torch.tensor([5]), torch.nan)
    out = attention(spoiled, k, v, "entmax:alpha=1.5", mask=blind)
    assert bool((out[..., 5, :] == 0).all())
    assert all(bool(grad.isfinite().all()) for grad in torch.autograd.grad(out.sum(), (q, k, v)))


def test_weights_of_hidden_keys() -> None:
    q, k, v = states()
    _, want = attention(q, k, v, "sparsemax", causal=True, return_weights=True)
    k[..., 33:, :], v[..., 20, :] = torch.nan, torch.inf
    out, weights = attention(q, k, v, "sparsemax", causal=True, return_weights=True)
    torch.testing.assert_close(weights[..., :33, :], want[..., :33, :])  # the weights do not depend on the values
    assert bool(weights[..., 33:, :].isnan().all())
    assert bool(out[..., :20, :].isfinite().all())
    assert bool(out[..., 20:, :].isnan().all())


def compiled(spec: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    return torch.compile(lambda q, k, v: attention(q, k, v, spec, **options), fullgraph=True, backend="aot_eager")


def by_element(spec: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    return torch.func.vmap(lambda q, k, v: attention(q, k, v, spec, **options))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("made_by", [compiled, by_element])
@pytest.mark.parametrize("case", ["causal", "padding", slow("window"), "position_bias"])
@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
def test_where_values_cannot_be_read(spec: str, case: str, made_by: Callable[..., Any]) -> None:
    options, hidden, rows = CASES[case]
    options = {name: t.squeeze(0) if isinstance(t, Tensor) and t.dim() == 4 else t for name, t in options.items()}
    attend, (q, k, v) = made_by(spec, options), states()
    want = attend(q, k, v)
    torch.testing.assert_close(want, attention(q, k, v, spec, **options), rtol=1e-5, atol=1e-5)
    leaves = [t.index_fill(2, torch.arange(LENGTH)[hidden], torch.nan).requires_grad_() for t in (k, v)]
    out = attend(q, *leaves)
    torch.testing.assert_close(out[..., rows, :], want[..., rows, :], rtol=1e-5, atol=1e-5)
    assert int(out.isnan().sum()) == out.numel() - out[..., rows, :].numel()
    grads = torch.autograd.grad(out[..., rows, :].sum(), leaves)
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_large_numbers_are_no_infinities(dtype: torch.dtype) -> None:
    """Finite values whose sum overflows: the call is as without the check."""
    q, k, v = states(dtype)
    v = v.abs().clamp(min=0.5, max=1) * 5e36  # torch sums before it divides
    for grad in (False, True):
        out = attention(q, k, v.requires_grad_(grad), "softmax:temperature=0.5", causal=True)
        assert bool(out.isfinite().all())
        torch.testing.assert_close(out[..., 0, :], v[..., 0, :].repeat_interleave(2, 1))
