"""The lab attends over the keys that have a weight alone, where its normalizer has exact zeros."""

from __future__ import annotations

import pytest
import torch
from lab_cases import choice, small
from torch import Tensor, nn
from torch.testing import assert_close

from abbe.lab.network import Attention, AttentionSettings, temperature
from abbe.lab.run import train

LENGTH, SEEDS = 128, 2


def attended(normalizer: str, t: str = "1", watched: bool = False, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Output and gradients of one layer with two seeds, 20 texts of 128 tokens."""
    generators = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    layer = Attention(generators, AttentionSettings(32, 2, normalizer, temperature(t))).to(dtype)
    layer.watched = watched
    x = 3 * torch.randn(SEEDS, 20, LENGTH, 32, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    out = layer(*3 * (x.to(dtype),), torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
    weights: list[nn.Parameter] = list(layer.parameters())
    return [out, *torch.autograd.grad(out.square().mean(), weights)]


@pytest.mark.parametrize("t", ["1", "0.5", "learned"])
def test_exact_zeros_take_the_support(sparse_calls: list[str], t: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = attended("sparsemax", t)
    assert sparse_calls == ["sparsemax"]
    monkeypatch.setattr(Attention, "_has_support", lambda *_: False)
    assert_close(sparse, attended("sparsemax", t), rtol=1e-3, atol=1e-5)
    assert sparse_calls == ["sparsemax"]


def test_reading_a_layer_changes_nothing(sparse_calls: list[str]) -> None:
    for plain, read in zip(attended("sparsemax"), attended("sparsemax", watched=True), strict=True):
        assert torch.equal(plain, read)
    assert len(sparse_calls) == 2


def test_softmax_and_double_precision_take_full_rows(sparse_calls: list[str]) -> None:
    attended("softmax")
    attended("sparsemax", dtype=torch.float64)
    assert sparse_calls == []


def test_a_training_run_takes_it(sparse_calls: list[str]) -> None:
    """At the length of its text; short rows cost less in full."""
    task = small("text", length=LENGTH)
    trained = train(task, choice("text", normalizer="sparsemax", steps=2, batch=64, heads=2, readings=1))
    assert "sparsemax" in sparse_calls
    assert trained["seeds"][0]["loss"] > 0
