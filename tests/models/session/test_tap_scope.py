"""The tap leaves no trace: restored models, registries and memory; models that do not disturb each other; refusals."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from inside import session_module as _session
from threads import in_two_threads
from tiny_models import LENGTH, UNROUTED, bert, gpt2, gpt_oss, llama, make, mistral, t5, text_pair, tokens
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, GPT2LMHeadModel

from abbe import AbbeError
from abbe.models import AttentionCall, tap

pytestmark = pytest.mark.usefixtures("no_grad")


def state(network: nn.Module) -> Any:
    """All that a tap touches: config objects by identity, their settings, hooks, registered names."""
    configs = [
        (name, key, id(value), value.to_dict(), value._attn_implementation)
        for name, module in network.named_modules()
        for key, value in vars(module).items()
        if hasattr(value, "_attn_implementation")
    ]
    hooks = [
        (len(module._forward_pre_hooks), len(module._forward_hooks), len(module._forward_pre_hooks_with_kwargs))
        for module in network.modules()
    ]
    return configs, hooks, dict(AttentionInterface._global_mapping), dict(AttentionMaskInterface._global_mapping)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [gpt2, llama, t5], ids=lambda build: build.__name__)
def test_everything_is_restored(build: Any, implementation: str) -> None:
    network = build(attn_implementation=implementation)
    inputs = text_pair() if build is t5 else {"input_ids": tokens()}
    before = state(network)
    with tap(network) as t:
        t.check(**inputs)
        t.listen(lambda call: None)
        network(**inputs)
        assert state(network) != before
    assert state(network) == before
    assert network.config._attn_implementation == implementation


def test_everything_is_restored_after_an_exception() -> None:
    network = gpt2()
    before = state(network)

    def fail(call: AttentionCall) -> None:
        raise RuntimeError("a consumer failed")

    def run() -> None:
        with tap(network) as t:
            t.listen(fail)
            network(input_ids=tokens())

    with pytest.raises(RuntimeError, match="a consumer failed"):
        run()
    assert state(network) == before
    with pytest.raises(IndexError), tap(network) as t:
        t.check(input_ids=tokens(65))  # one token more than there are positions
    assert state(network) == before


@pytest.mark.parametrize("part", ["register", "refuse_requests_for_weights", "save_as_plain"])
def test_a_failed_start_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    network = llama()
    before = state(network)
    monkeypatch.setattr(_session, part, lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError), tap(network):
        pass
    assert state(network) == before


def test_a_failed_check_can_be_followed_by_a_good_one() -> None:
    network = gpt2()
    with tap(network) as t:
        with pytest.raises(IndexError):
            t.check(input_ids=tokens(65))
        assert t.check(input_ids=tokens()) < 1e-5


def test_nested_taps_are_refused() -> None:
    network = llama()
    with tap(network):
        for inner in (network, network.model):
            with pytest.raises(AbbeError, match="is tapped already; leave the other tap first"), tap(inner):
                pass
    with tap(network.model) as t:
        assert t.check(input_ids=tokens()) < 1e-5
        with pytest.raises(AbbeError, match="LlamaForCausalLM is tapped already"), tap(network):
            pass


def test_taps_one_after_the_other() -> None:
    network, errors = llama(), []
    for _ in range(3):
        with tap(network) as t:
            errors.append(t.check(input_ids=tokens()))
            assert t.layers == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert errors[0] == errors[1] == errors[2]


def test_two_models_at_once() -> None:
    one, two, untouched = llama(), mistral(), llama(num_hidden_layers=3)
    wanted = untouched(input_ids=tokens()).logits
    heard: dict[str, list[int]] = {"one": [], "two": []}
    with tap(one) as first, tap(two) as second:
        first.check(input_ids=tokens())
        second.check(input_ids=tokens())
        first.listen(lambda call: heard["one"].append(call.query.shape[-2]))
        second.listen(lambda call: heard["two"].append(call.query.shape[-2]))
        one(input_ids=tokens(7))
        two(input_ids=tokens(9))
        assert torch.equal(untouched(input_ids=tokens()).logits, wanted)
    assert heard == {"one": [7, 7], "two": [9, 9]}


def test_a_model_that_shares_its_config_is_not_tapped() -> None:
    one = gpt2()
    two = GPT2LMHeadModel(one.config).eval()
    assert two.config is one.config
    heard: list[AttentionCall] = []
    with tap(one) as t:
        t.listen(heard.append)
        two(input_ids=tokens())
        assert two.config._attn_implementation == "sdpa"
        assert not heard
        with tap(two) as other:
            assert other.check(input_ids=tokens()) < 1e-5
        assert not heard


def test_two_threads_with_two_models() -> None:
    networks = [llama(), llama(num_hidden_layers=3)]
    errors: dict[int, list[float]] = {0: [], 1: []}
    layers: dict[int, set[int]] = {0: set(), 1: set()}

    def work(i: int) -> None:
        for _ in range(8):
            with torch.no_grad(), tap(networks[i]) as t:
                errors[i].append(t.check(input_ids=tokens()))
                t.listen(lambda call: layers[i].add(call.layer))
                networks[i](input_ids=tokens())

    in_two_threads(work)
    assert [len(errors[i]) for i in range(2)] == [8, 8]
    assert max(errors[0] + errors[1]) < 1e-5
    assert layers == {0: {0, 1}, 1: {0, 1, 2}}
    assert not [name for name in AttentionInterface._global_mapping if name.startswith("abbe-")]


def test_the_registered_name_misleads_nobody() -> None:
    network = llama()
    with tap(network):
        name = network.config._attn_implementation
        assert not any(word in name for word in ("sdpa", "flash", "flex_attention", "eager", "/"))
        assert name in AttentionInterface._global_mapping
        assert name in AttentionMaskInterface._global_mapping


def test_consumers_are_not_called_by_the_check_and_are_called_in_order() -> None:
    network, heard = llama(), []
    with tap(network) as t:
        t.listen(lambda call: heard.append(("a", call.layer)))
        t.listen(lambda call: heard.append(("b", call.layer)))
        t.check(input_ids=tokens())
        assert heard == []
        network(input_ids=tokens())
    assert heard == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_nothing_is_kept_after_a_layer() -> None:
    network = llama()
    seen: list[list[weakref.ref[Any]]] = []

    def consumer(call: AttentionCall) -> None:
        gc.collect()
        assert all(ref() is None for refs in seen for ref in refs)  # the layers before
        parts = (call, call.query, call.key, call.value, call.hidden)
        seen.append([weakref.ref(part) for part in parts])

    with tap(network) as t:
        t.check(input_ids=tokens(), use_cache=False)
        t.listen(consumer)
        network(input_ids=tokens(), use_cache=False)
        gc.collect()
        assert len(seen) == 2
        assert all(ref() is None for refs in seen for ref in refs)


class NoTensorAsLargeAs(TorchDispatchMode):
    """Fails when any operation makes a tensor of so many bytes; a view counts as what it views."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tensor) and part.untyped_storage().nbytes() >= self.size:
                raise MemoryError(f"{func} made a tensor of shape {tuple(part.shape)}")
        return result


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (llama, {}),
        (gpt2, {"n_positions": 4096}),
        (bert, {"max_position_embeddings": 4096}),
        (gpt_oss, {"sliding_window": 5000}),  # a shorter window would make the model itself build a mask
    ],
    ids=["llama", "gpt2", "bert", "gpt-oss"],
)
def test_no_matrix_of_all_queries_and_keys(build: Any, settings: dict[str, Any]) -> None:
    network, rows, heard = build(**settings), torch.arange(0, 4096, 64), []
    with tap(network) as t:
        t.listen(lambda call: heard.append(call.logits(rows).shape))
        with NoTensorAsLargeAs(4096 * 4096):  # not even one bool for each pair
            network(input_ids=tokens(4096, batch=1))
            assert heard == [(1, 4, 64, 4096)] * 2
            if build is not gpt_oss:  # which computes eagerly when it is not tapped
                t.check(input_ids=tokens(4096, batch=1))


def test_the_guard_of_the_memory_test_works() -> None:
    network = llama(attn_implementation="eager")
    with NoTensorAsLargeAs(1024 * 1024), pytest.raises(MemoryError):
        network(input_ids=tokens(1024, batch=1))


@pytest.mark.parametrize("name", UNROUTED)
def test_unrouted_models_are_refused_by_name(name: str) -> None:
    network = UNROUTED[name]()
    before = state(network)
    expected = rf"^unsupported: {name} does not route its attention through transformers' attention interface"
    with pytest.raises(AbbeError, match=expected), tap(network):
        pass
    assert state(network) == before


def test_a_layer_that_is_never_called_is_refused() -> None:
    network = gpt2()
    network.transformer.spare = copy.deepcopy(network.transformer.h[0])
    expected = r"GPT2LMHeadModel did not call 1 of its 3 attention modules.*transformer\.spare\.attn"
    with pytest.raises(AbbeError, match=expected), tap(network) as t:
        t.check(input_ids=tokens())


def test_a_model_with_one_unrouted_layer_is_refused() -> None:
    class HomemadeAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    network = gpt2()
    network.transformer.h[1].attn = HomemadeAttention()
    with pytest.raises(AbbeError, match=r"unsupported: GPT2LMHeadModel .*\(HomemadeAttention\)"), tap(network):
        pass


def test_only_transformers_models() -> None:
    for other in (nn.Linear(2, 2), "gpt2", None):
        with pytest.raises(AbbeError, match=f"tap needs a transformers model .* got {type(other).__name__}"):
            tap(other)


def test_a_loaded_model_can_be_tapped() -> None:
    @dataclass
    class Loaded:
        network: nn.Module

    with tap(Loaded(llama())) as t:
        assert t.check(input_ids=tokens()) < 1e-5


def test_without_a_check_only_the_projection_is_unknown() -> None:
    network, calls = llama(), []
    with tap(network) as t:
        t.listen(calls.append)
        network(input_ids=tokens())
        assert t.error is None
    assert [call.layer for call in calls] == [0, 1]
    assert all(call.projection is None and call.hidden is not None for call in calls)
    assert calls[0].weights().shape == (2, 4, LENGTH, LENGTH)


def test_dropout_of_a_model_in_training_is_kept() -> None:
    network = make("GPT2LMHeadModel", "GPT2Config", n_layer=1, n_head=2, n_embd=16, attn_pdrop=0.5).train()
    torch.manual_seed(0)
    wanted = network(input_ids=tokens()).logits
    with tap(network):
        torch.manual_seed(0)
        assert torch.equal(network(input_ids=tokens()).logits, wanted)
