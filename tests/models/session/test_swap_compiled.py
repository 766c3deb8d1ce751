"""torch.compile(model, fullgraph=True) with other normalizers swapped in: the numbers of the plain model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, llama, text
from torch import Tensor
from transformers import DynamicCache, StaticCache

import abbe
from abbe.models import tap

MIXED = {"*.heads.1,3": "entmax:alpha=1.5,learn=true", "*.heads.0": "softmax:temperature=2"}


@pytest.fixture(autouse=True)
def forget_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def outcome(call: Any, network: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output and all gradients."""
    network.zero_grad(set_to_none=True)
    output = call(**inputs)[0]
    output.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return {"output": output.detach()} | gradients


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, expected in want.items():
        limit = 2e-5 * float(expected.abs().max())
        torch.testing.assert_close(got[name], expected, rtol=0, atol=limit, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    plain = network(**inputs)[0].detach()
    with abbe.swap(network, "entmax:alpha=1.5"):
        want = network(**inputs)[0].detach()
        got = torch.compile(network, fullgraph=True, backend="eager")(**inputs)[0].detach()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 * float(want.abs().max()))
    assert float((got - plain).abs().max()) > 0.01


@pytest.mark.slow
def test_a_compiled_model_follows_every_swap_and_restore() -> None:
    """Compiled before the first swap: each swap and each end of one is seen, forward and backward."""
    network, inputs = llama(num_hidden_layers=1), text()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    plain = outcome(network, network, inputs)
    assert_same(outcome(compiled, network, inputs), plain)
    for what in ("entmax:alpha=1.5", MIXED):
        with abbe.swap(network, what):
            want = outcome(network, network, inputs)
            assert_same(outcome(compiled, network, inputs), want)
        assert float((want["output"] - plain["output"]).abs().max()) > 0.01
    assert_same(outcome(compiled, network, inputs), plain)


def test_learned_values_are_read_at_every_call() -> None:
    network, inputs = llama(num_hidden_layers=1), text()
    with torch.no_grad(), abbe.swap(network, "entmax:alpha=1.5,learn=true") as handle:
        compiled = torch.compile(network, fullgraph=True, backend="eager")
        before = compiled(**inputs).logits
        for value in handle.parameters():
            value.add_(0.5)
        after = compiled(**inputs).logits
        torch.testing.assert_close(after, network(**inputs).logits, rtol=0, atol=1e-4)
        assert float((after - before).abs().max()) > 0.01


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_of_a_generation(cache: str) -> None:
    network, ids = llama(num_hidden_layers=1), text()["input_ids"]
    with abbe.swap(network, "entmax:alpha=1.5"):
        want = network(input_ids=ids).logits
        compiled = torch.compile(network, fullgraph=True, backend="eager")
        states: Any = DynamicCache(config=network.config)
        if cache == "static":
            states = StaticCache(config=network.config, max_cache_len=24)
        parts = [ids[:, :14], *ids[:, 14:].split(1, 1)]
        got = [compiled(input_ids=part, past_key_values=states, use_cache=True).logits for part in parts]
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.slow
def test_a_tap_that_nobody_listens_to() -> None:
    network, inputs = llama(), text()
    want = network(**inputs).logits
    with tap(network) as t:
        t.check(**inputs)
        got = torch.compile(network, fullgraph=True, backend="eager")(**inputs).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["entmax:alpha=1.5", MIXED], ids=str)
def test_with_inductor(what: Any) -> None:
    network, inputs = llama(), text()
    with abbe.swap(network, what):
        want = outcome(network, network, inputs)
        assert_same(outcome(torch.compile(network, fullgraph=True), network, inputs), want)
