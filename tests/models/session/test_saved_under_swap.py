"""Saving a model while it is tapped or swapped: what is written is the plain model, and nothing of abbe."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
from torch import nn

import abbe

OPEN: dict[str, Callable[[nn.Module], Any]] = {
    "swap": lambda network: abbe.swap(network, "entmax:alpha=1.5,learn=true"),
    "tap": abbe.tap,
}


def saved(network: nn.Module) -> bytes:
    target = io.BytesIO()
    torch.save(network, target)
    return target.getvalue()


def opened(content: bytes) -> nn.Module:
    restored: nn.Module = torch.load(io.BytesIO(content), weights_only=False)
    return restored


@pytest.mark.parametrize("how", OPEN)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "t5"])
def test_the_plain_model_is_saved(how: str, family: str) -> None:
    build, inputs, _ = tiny_models.FAMILIES[family]
    network = build()
    with torch.no_grad():
        want = network(**inputs()).logits
        with OPEN[how](network):
            content = saved(network)
            under = network(**inputs()).logits
        restored = opened(content)
        assert torch.equal(restored(**inputs()).logits, want)
        assert torch.equal(network(**inputs()).logits, want)
        assert torch.allclose(under, want, atol=1e-4) == (how == "tap")  # the swap itself went on
    assert list(restored.state_dict()) == list(network.state_dict())
    assert restored.config.to_dict() == network.config.to_dict()
    assert restored.config._attn_implementation == network.config._attn_implementation
    assert b"abbe" not in content


def test_hooks_of_others_stay_and_those_of_abbe_come_back() -> None:
    network = tiny_models.gpt2()
    network.register_forward_pre_hook(pickled_hook)
    hooks = [dict(module._forward_pre_hooks) for module in network.modules()]
    calls: list[int] = []
    with abbe.swap(network, "sparsemax") as swapped:
        swapped.listen(lambda call, weights: calls.append(call.layer))
        under = [dict(module._forward_pre_hooks) for module in network.modules()]
        restored = opened(saved(network))
        assert under != hooks
        assert [dict(module._forward_pre_hooks) for module in network.modules()] == under
        with pytest.raises(abbe.AbbeError, match="output_attentions"):
            network(**tiny_models.text(), output_attentions=True)
        network(**tiny_models.text())
    assert calls == [0, 1]
    assert list(restored._forward_pre_hooks.values()) == [pickled_hook]
    assert [dict(module._forward_pre_hooks) for module in network.modules()] == hooks
    assert not {"__reduce_ex__", "__deepcopy__"} & set(vars(network))


def pickled_hook(module: nn.Module, args: object) -> None:
    """At the top of a module, where pickle finds it."""


def test_pickle_and_a_part_of_the_model() -> None:
    network: Any = tiny_models.gpt2()
    with abbe.swap(network, "sparsemax"):
        whole, part = pickle.dumps(network), pickle.dumps(network.transformer)
    for content, original in ((whole, network), (part, network.transformer)):
        restored = pickle.loads(content)
        assert type(restored) is type(original)
        assert torch.equal(main(restored), main(original))


def main(network: Any) -> torch.Tensor:
    with torch.no_grad():
        first: torch.Tensor = network(**tiny_models.text())[0]
    return first


def test_tensors_are_shared_until_they_are_written() -> None:
    """A large model is not held twice."""
    network = tiny_models.gpt2()
    with abbe.swap(network, "sparsemax"):
        state = network.__reduce_ex__(2)[2]
    held = state["_modules"]["transformer"]
    assert all(a is b for a, b in zip(held.parameters(), network.transformer.parameters(), strict=True))


def test_a_copy_is_still_refused_by_name() -> None:
    network = tiny_models.gpt2()
    with abbe.swap(network, "sparsemax"):
        twin = copy.deepcopy(network)
        with pytest.raises(abbe.AbbeError, match="but of a copy; swap the copy itself"):
            twin(**tiny_models.text())
