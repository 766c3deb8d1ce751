"""Keys that kvpress's head-wise presses cut: `masked_key_indices` of a module, which kvpress's wrapper reads."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tiny_models import LENGTH, gpt_oss, llama, main_output, mistral, tokens
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache

from abbe import AbbeError, swap, tap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")
# Of text, key head and key, as AdaKV writes them: other keys for each head.
CUT = (torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 0, 1, 1]), torch.tensor([3, 7, 4, 1, 9, 10]))


def steps(network: Any, cut: bool, *, count: int = 1, mask: Tensor | None = None) -> Tensor:
    """The logits of the last tokens, after a text in the cache of which some keys are cut."""
    cache, ids = DynamicCache(config=network.config), tokens()
    network(input_ids=ids[:, :-count], past_key_values=cache)
    for module in network.modules():
        if hasattr(module, "q_proj"):
            module.masked_key_indices = CUT if cut else None
    last: Tensor = network(input_ids=ids[:, -count:], past_key_values=cache, attention_mask=mask).logits
    return last


def mask_without_cut_keys(count: int = 1) -> Tensor:
    """(text, head, query, key): the keys that a head keeps of those before each query."""
    kept = torch.ones(2, 2, LENGTH, dtype=torch.bool)
    kept[CUT] = False
    return kept.repeat_interleave(2, 1)[:, :, None] & torch.ones(LENGTH, LENGTH).tril().bool()[-count:]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("spec", ["softmax", "sparsemax", "norm-softmax"])
def test_a_head_does_not_see_the_keys_that_are_cut(spec: str, count: int) -> None:
    network: Any = llama()
    with swap(network, spec):
        got, whole = steps(network, True, count=count), steps(network, False, count=count)
        want = steps(network, False, count=count, mask=mask_without_cut_keys(count))
        causal = torch.ones(LENGTH, LENGTH).tril().bool()[-count:].expand(2, 1, -1, -1)
        floating = steps(network, True, count=count, mask=torch.where(causal, 0.0, -1e9))
    assert float((got - whole).abs().max()) > 0.1
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    torch.testing.assert_close(floating, want, atol=1e-5, rtol=0)
    if spec != "norm-softmax":
        network.set_attn_implementation(f"abbe:{spec}")
        torch.testing.assert_close(steps(network, True, count=count), want, atol=1e-5, rtol=0)


def test_a_tap_sees_them_cut() -> None:
    network: Any = llama()
    calls: list[AttentionCall] = []
    want = steps(network, False, mask=mask_without_cut_keys())
    with tap(network) as t:
        t.listen(calls.append)
        torch.testing.assert_close(steps(network, True), want, atol=1e-5, rtol=0)
    for call in calls[-2:]:
        assert torch.equal(call.visible(torch.tensor([0])), mask_without_cut_keys())
        assert torch.equal(call.weights() == 0, ~mask_without_cut_keys())


def test_a_new_text_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As kvpress does; without kvpress the module is not touched."""
    network: Any = llama()
    attention = network.model.layers[0].self_attn
    monkeypatch.delitem(sys.modules, "kvpress", raising=False)
    with swap(network, "softmax"):
        network(input_ids=tokens())
        assert not hasattr(attention, "masked_key_indices")
        attention.masked_key_indices = CUT
        monkeypatch.setitem(sys.modules, "kvpress", sys)
        network(input_ids=tokens())
        assert attention.masked_key_indices is None


def test_places_that_a_window_moves_are_refused() -> None:
    for network in (mistral(), gpt_oss()):
        expected = r"self_attn\) has keys that a press of kvpress cuts .* sliding window that moves them"
        with swap(network, "softmax"), pytest.raises(AbbeError, match=expected):
            steps(network, True)
    network = mistral(sliding_window=32)  # longer than the text
    want = steps(network, False, mask=mask_without_cut_keys())
    with swap(network, "softmax"):
        torch.testing.assert_close(steps(network, True), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", ["swap", "tap", "name"])
def test_dropout_may_come_by_position(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kvpress's wrapper passes it so to the functions that it wraps."""
    network: Any = llama(attention_dropout=0.5).train()

    def logits() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return main_output(network(input_ids=tokens()))

    def by_position(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, dropout: float, **rest: Any) -> Any:
        return function(module, query, key, value, mask, dropout, **rest)

    with ExitStack() as stack:
        if how == "name":
            network.set_attn_implementation("abbe:sparsemax")
        else:
            stack.enter_context(swap(network, "sparsemax") if how == "swap" else tap(network))
        names, name = AttentionInterface._global_mapping, network.config._attn_implementation
        function, want = names[name], logits()
        monkeypatch.setitem(names, name, by_position)
        assert torch.equal(logits(), want)
        monkeypatch.undo()
        assert not torch.equal(network.eval()(input_ids=tokens()).logits, want)
