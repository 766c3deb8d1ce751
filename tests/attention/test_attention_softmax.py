"""attention with softmax is torch's own; decoding, causality and windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_problems import SPECS, TINY, make
from inside import BlockSize, _blockwise
from torch import Tensor
from torch.testing import assert_close

import abbe
from abbe import AbbeError, attention


def count_kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(None) or kernel(*a, **k))
    return calls


def hiding_mask(queries: int, keys: int) -> Tensor:
    """Hides some rows wholly, and all early keys from others: the kernel works through keys 512 at a time."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) > 0.5
    mask[: queries // 2, : keys * 9 // 10] = False
    mask[3:5] = False
    return mask


KERNEL_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"scale": 0.3},
    "temperature": {"normalizer": "softmax:temperature=0.5", "scale": 0.3},
    "mask": {"mask": hiding_mask(700, 700)},
    "padding": {"mask": hiding_mask(2, 700)[:, None, None, :]},
    "bias": {"position_bias": torch.linspace(-3, 3, 490000, dtype=torch.float64).reshape(700, 700)},
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", KERNEL_CASES)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_softmax_is_torchs_attention(name: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = make(heads=2, kv_heads=kv_heads, queries=700, keys=700, width=8, batch=(2,))
    grad = torch.randn_like(q)
    options = KERNEL_CASES[name]
    extra = options.get("mask", options.get("position_bias"))
    scale = options["scale"] / (0.5 if "normalizer" in options else 1) if "scale" in options else None
    expected = F.scaled_dot_product_attention(
        q, k, v, extra, is_causal=options.get("causal", False), scale=scale, enable_gqa=True
    )
    calls = count_kernel_calls(monkeypatch)
    output = attention(q, k, v, **options)
    assert len(calls) == 1
    blockwise = _blockwise(q, k, v, **{"normalizer": "softmax", **options})
    assert len(calls) == 1
    assert_close(output, expected, rtol=1e-12, atol=1e-14)
    assert_close(blockwise, expected, rtol=1e-10, atol=1e-12)
    grads = [torch.autograd.grad(out, (q, k, v), grad) for out in (expected, output, blockwise)]
    assert_close(grads[1], grads[0], rtol=1e-11, atol=1e-13)
    assert_close(grads[2], grads[0], rtol=1e-9, atol=1e-11)


NOT_FOR_THE_KERNEL: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": 0.0},
    "dropout": {"dropout": 0.1},
    "weights": {"return_weights": True},
    "causal and mask": {"causal": True, "mask": torch.ones(6, 6, dtype=torch.bool)},
    "mask and bias": {"mask": torch.ones(6, 6, dtype=torch.bool), "position_bias": torch.zeros(6, 6).double()},
    "bias of another dtype": {"position_bias": torch.zeros(6, 6)},
    "negative scale": {"causal": True, "scale": -1.0},
    "other normalizer": {"normalizer": "sparsemax"},
    "learned": {"normalizer": "learned-temperature"},
    "bias with temperature": {"normalizer": "softmax:temperature=2", "position_bias": torch.zeros(6, 6).double()},
}


@pytest.mark.parametrize("options", NOT_FOR_THE_KERNEL.values(), ids=NOT_FOR_THE_KERNEL.keys())
def test_torchs_kernel_is_not_asked_for_what_it_cannot_do(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_kernel_calls(monkeypatch)
    q, k, v = make(requires_grad=False)
    attention(q, k, v)
    assert len(calls) == 1
    attention(q, k, v, **options)
    attention(q[:, :4], k, v, causal=True)  # torch aligns to the first key
    attention(q, k, v[..., :2])  # would store all scores
    assert len(calls) == 1


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "stick-breaking", "topk:k=3"])
@pytest.mark.parametrize("window", [None, 3])
def test_decoding_is_the_last_row(spec: str, window: int | None) -> None:
    q, k, v = make(requires_grad=False)
    for last in (1, 2, 5):
        whole = attention(q, k, v, spec, causal=True, window=window)
        step = attention(q[:, -last:], k, v, spec, causal=True, window=window)
        assert_close(step, whole[:, -last:])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [None, TINY])
def test_no_query_sees_the_future_or_what_left_its_window(spec: str, size: BlockSize | None) -> None:
    q, k, v = make(requires_grad=False)
    normalizer = abbe.normalizer(spec.format(heads=4)).double()

    def attend() -> Tensor:
        options = {"causal": True, "window": 3}
        return _blockwise(q, k, v, normalizer, size, **options) if size else attention(q, k, v, normalizer, **options)

    before = attend()
    k[:, 2] += 5
    v[:, 2] -= 5
    moved = (attend() != before).any(-1).any(0)
    assert not moved[[0, 1, 5]].any()
    assert moved[[2, 3, 4]].any()


# -- The names of SDPA ------------------------------------------------------------------------------------------------


def inputs(queries: int = 7, keys: int = 7, heads: int = 4, kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = (2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 8)
    q, k, v = (torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return q, k, v


def shown(queries: int, keys: int) -> Tensor:
    mask = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True  # torch gives NaN where a query sees no key
    return mask


def added(queries: int, keys: int) -> Tensor:
    drawn = torch.randn(4, queries, keys, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return drawn.masked_fill(drawn > 1.5, float("-inf"))


CALLS: list[dict[str, Any]] = [
    {},
    {"attn_mask": "bool"},
    {"attn_mask": "floating"},
    {"is_causal": True},
    {"is_causal": False, "dropout_p": 0.0, "enable_gqa": False},
    {"is_causal": True, "scale": 0.3},
    {"attn_mask": "bool", "scale": 0.3, "dropout_p": 0.0},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 7), (7, 3), (1, 5)])
def test_the_numbers_are_those_of_torch(call: dict[str, Any], queries: int, keys: int) -> None:
    """Also where queries and keys differ in number: is_causal then counts from the first of both."""
    masks = {"bool": shown(queries, keys), "floating": added(queries, keys)}
    given = call | ({"attn_mask": masks[call["attn_mask"]]} if "attn_mask" in call else {})
    ours, theirs = inputs(queries, keys), inputs(queries, keys)
    output, wanted = abbe.attention(*ours, **given), F.scaled_dot_product_attention(*theirs, **given)
    assert_close(output, wanted, rtol=1e-10, atol=1e-12)
    output.square().sum().backward()
    wanted.square().sum().backward()
    for mine, yours in zip(ours, theirs, strict=True):
        assert_close(mine.grad, yours.grad, rtol=1e-9, atol=1e-11)


def test_tensors_have_torchs_names() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    by_name = abbe.attention(query=q, key=k, value=v, is_causal=True)
    assert_close(by_name, torch.nn.functional.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True))


def test_grouped_heads() -> None:
    q, k, v = inputs(heads=6, kv_heads=2)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert_close(abbe.attention(q, k, v, is_causal=True, enable_gqa=True), wanted, rtol=1e-10, atol=1e-12)
    with pytest.raises(AbbeError, match=r"^enable_gqa is False, but query has 6 heads and key has 2: omit it"):
        abbe.attention(q, k, v, enable_gqa=False)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "topk:k=2"])
def test_the_names_mean_the_same_with_any_normalizer(spec: str) -> None:
    q, k, v = inputs()
    mask, bias = shown(7, 7), added(7, 7)
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"attn_mask": mask}, {"mask": mask}),
        ({"attn_mask": bias}, {"position_bias": bias}),
        ({"attn_mask": mask, "position_bias": bias}, {"mask": mask, "position_bias": bias}),
        ({"is_causal": True, "window": 3}, {"causal": True, "window": 3}),
    ]
    for torchs, ours in pairs:
        assert torch.equal(abbe.attention(q, k, v, spec, **torchs), abbe.attention(q, k, v, spec, **ours))
    torch.manual_seed(0)
    dropped = abbe.attention(q, k, v, spec, dropout_p=0.4)
    torch.manual_seed(0)
    assert torch.equal(dropped, abbe.attention(q, k, v, spec, dropout=0.4))


def test_is_causal_and_causal_differ_where_lengths_do() -> None:
    q, k, v = inputs(3, 7)
    _, first = abbe.attention(q, k, v, is_causal=True, return_weights=True)
    _, last = abbe.attention(q, k, v, causal=True, return_weights=True)
    assert (first[0, 0] > 0).sum(-1).tolist() == [1, 2, 3]
    assert (last[0, 0] > 0).sum(-1).tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mask": shown(7, 7), "attn_mask": shown(7, 7)}, "mask and attn_mask"),
        ({"causal": True, "is_causal": True}, "causal and is_causal"),
        ({"causal": True, "is_causal": False}, "causal and is_causal"),
        ({"dropout": 0.1, "dropout_p": 0.1}, "dropout and dropout_p"),
        ({"position_bias": added(7, 7), "attn_mask": added(7, 7)}, "position_bias and a floating attn_mask"),
    ],
    ids=lambda given: str(given) if isinstance(given, str) else "",
)
def test_both_names_at_once(given: dict[str, Any], named: str) -> None:
    with pytest.raises(AbbeError, match=f"^{named} are two names for one option: give one of them$"):
        abbe.attention(*inputs(), **given)


@pytest.mark.parametrize("mask", [torch.ones(7, 7, dtype=torch.int64), "causal"])
def test_a_mask_of_another_kind(mask: Any) -> None:
    with pytest.raises(AbbeError, match=r"^attn_mask must be a bool tensor"):
        abbe.attention(*inputs(), attn_mask=mask)
    with pytest.raises(AbbeError, match=r"^query must be a floating tensor"):
        abbe.attention(None, None, None, is_causal=True)  # type: ignore[call-overload]
