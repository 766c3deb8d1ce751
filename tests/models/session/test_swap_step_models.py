"""Models that generate token by token: steps by one kernel give what a dense second implementation gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inside import swap_module as _swap
from swap_reference import reference, reference_output
from tiny_models import gemma2, gpt2, gpt_oss, llama, mistral, tokens
from transformers import DynamicCache, StaticCache

from abbe import swap

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "ssmax:s=0.5", "scaled:of=sparsemax,t=-0.5", "topk:k=3"])
@pytest.mark.parametrize("build", [gpt2, llama], ids=lambda build: build.__name__)
def test_a_model_step_by_step(build: Any, spec: str, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_swap, "KERNELS_FROM", 1)
    network, ids = build(), tokens()
    cache = DynamicCache(config=network.config)
    wanted = reference_output(network, spec, input_ids=ids)
    with swap(network, spec):
        network(input_ids=ids[:, :4], past_key_values=cache)
        assert not steps
        for place in range(4, ids.shape[1]):
            logits = network(input_ids=ids[:, place : place + 1], past_key_values=cache).logits
            torch.testing.assert_close(logits[:, 0], wanted[:, place], atol=5e-5, rtol=0)
    assert steps


@pytest.mark.parametrize("build", [mistral, gemma2, gpt_oss], ids=lambda build: build.__name__)
def test_a_model_with_windows_caps_or_sinks_takes_the_longer_way(
    build: Any, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_swap, "KERNELS_FROM", 1)
    network, ids = build(), tokens()
    cache = DynamicCache(config=network.config)
    with swap(network, "entmax:alpha=1.5"):
        network(input_ids=ids[:, :-1], past_key_values=cache)
        logits = network(input_ids=ids[:, -1:], past_key_values=cache).logits
    wanted = reference_output(network, "entmax:alpha=1.5", input_ids=ids)
    torch.testing.assert_close(logits[:, 0], wanted[:, -1], atol=5e-5, rtol=0)
    assert not steps


@pytest.mark.parametrize("build", [gpt2, llama], ids=lambda build: build.__name__)
def test_generation_is_that_of_the_dense_model(build: Any, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_swap, "KERNELS_FROM", 1)
    network, ids = build(), tokens()
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    with swap(network, "entmax:alpha=1.5"):
        generated = network.generate(input_ids=ids, **settings)
        assert steps
        steps.clear()
        static = network.generate(input_ids=ids, cache_implementation="static", **settings)
    with reference(network, lambda path, head: "entmax:alpha=1.5") as twin:
        wanted = twin.generate(input_ids=ids, use_cache=False, **settings)
    assert torch.equal(generated, wanted)
    assert torch.equal(static, wanted)


def test_a_long_static_cache_shows_only_what_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_swap, "KERNELS_FROM", 1)
    network, ids = llama(), tokens()
    cache = StaticCache(config=network.config, max_cache_len=64)
    with swap(network, "sparsemax"):
        network(input_ids=ids[:, :-1], past_key_values=cache)
        logits = network(input_ids=ids[:, -1:], past_key_values=cache).logits
    wanted = reference_output(network, "sparsemax", input_ids=ids)
    torch.testing.assert_close(logits[:, 0], wanted[:, -1], atol=5e-5, rtol=0)
