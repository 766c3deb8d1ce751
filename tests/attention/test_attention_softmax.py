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
from abbe import attention


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
