"""A swap leaves no trace: restored models and registries; models that do not disturb each other."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from inside import relative_error
from inside import session_module as _session
from swap_reference import reference_output
from test_tap_scope import NoTensorAsLargeAs, state
from threads import in_two_threads
from tiny_models import bert, gpt2, llama, mistral, t5, text_pair, tokens
from torch import nn
from transformers import AttentionInterface, GPT2LMHeadModel

from abbe import AbbeError, swap, tap

pytestmark = pytest.mark.usefixtures("no_grad")
LEARNED = "entmax:alpha=1.5,learn=true"


def everything(network: nn.Module) -> Any:
    """All that a swap touches."""
    return state(network), list(network.state_dict()), [*dict(network.named_modules())], sorted(vars(network))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("build", [gpt2, llama, t5], ids=lambda build: build.__name__)
def test_everything_is_restored(build: Any, implementation: str) -> None:
    network = build(attn_implementation=implementation)
    inputs = text_pair() if build is t5 else {"input_ids": tokens()}
    before, plain = everything(network), network(**inputs).logits
    with swap(network, LEARNED) as swapped:
        swapped.check(**inputs)
        swapped.listen(lambda call, weights_of: None)
        network(**inputs)
        assert everything(network) != before
        assert "abbe_normalizers.0.0.learned.alpha.raw" in network.state_dict()
    assert everything(network) == before
    assert torch.equal(network(**inputs).logits, plain)


def test_a_handle_restores_once_or_twice() -> None:
    network = llama()
    before, plain = everything(network), network(input_ids=tokens()).logits
    handle = swap(network, "sparsemax")
    assert relative_error(plain, network(input_ids=tokens()).logits) > 1e-2
    handle.restore()
    handle.restore()
    assert everything(network) == before
    with pytest.raises(AbbeError, match="was restored already; call swap again"), handle:
        pass
    with pytest.raises(AbbeError, match="was restored already"):
        handle.listen(lambda call, weights_of: None)
    with pytest.raises(AbbeError, match="was restored already"):
        handle.check(input_ids=tokens())


def test_everything_is_restored_after_an_exception() -> None:
    network = gpt2()
    before = everything(network)

    def fail(call: Any, weights_of: Any) -> None:
        raise RuntimeError("a listener failed")

    def run() -> None:
        with swap(network, LEARNED) as swapped:
            swapped.listen(fail)
            network(input_ids=tokens())

    with pytest.raises(RuntimeError, match="a listener failed"):
        run()
    assert everything(network) == before
    with pytest.raises(IndexError), swap(network, LEARNED) as swapped:
        swapped.check(input_ids=tokens(65))  # one token more than there are positions
    assert everything(network) == before


def test_a_failed_check_leaves_the_swap_as_it_was() -> None:
    network = gpt2()
    with swap(network, "sparsemax") as swapped:
        wanted = network(input_ids=tokens()).logits
        hooks = state(network)[1]
        with pytest.raises(IndexError):
            swapped.check(input_ids=tokens(65))
        with pytest.raises(AbbeError, match="at least 2 tokens"):  # found in the second run
            swapped.check(input_ids=tokens(1))
        assert state(network)[1] == hooks
        assert torch.equal(network(input_ids=tokens()).logits, wanted)


@pytest.mark.parametrize("part", ["register", "refuse_requests_for_weights", "save_as_plain"])
def test_a_failed_start_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    network = llama()
    before = everything(network)
    monkeypatch.setattr(_session, part, lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        swap(network, LEARNED)
    assert everything(network) == before


def test_one_thing_at_a_time() -> None:
    network = llama()
    with swap(network, "sparsemax"):
        before = everything(network)
        for inner in (network, network.model):
            with pytest.raises(AbbeError, match="has other normalizers swapped in; restore that swap first"):
                swap(inner, "softmax")
            with pytest.raises(AbbeError, match="has other normalizers swapped in; restore"), tap(inner):
                pass
        assert everything(network) == before
    with tap(network), pytest.raises(AbbeError, match="is tapped already; leave the other tap first"):
        swap(network, "sparsemax")
    swap(network, "sparsemax").restore()


def test_a_copy_of_a_swapped_model_is_refused() -> None:
    network = llama()
    with swap(network, "sparsemax"):
        twin = copy.deepcopy(network)
        with pytest.raises(AbbeError, match="of a copy; swap the copy itself"):
            twin(input_ids=tokens())


def test_two_models_at_once() -> None:
    one, two, untouched = llama(), mistral(), llama(num_hidden_layers=3)
    plain = untouched(input_ids=tokens()).logits
    with swap(one, "sparsemax"), swap(two, "topk:k=2"):
        first, second = one(input_ids=tokens()).logits, two(input_ids=tokens()).logits
        assert torch.equal(untouched(input_ids=tokens()).logits, plain)
    assert relative_error(reference_output(one, "sparsemax", input_ids=tokens()), first) < 2e-5
    assert relative_error(reference_output(two, "topk:k=2", input_ids=tokens()), second) < 2e-5


def test_a_model_that_shares_its_config_is_not_swapped() -> None:
    one = gpt2()
    two = GPT2LMHeadModel(one.config).eval()
    plain = two(input_ids=tokens()).logits
    with swap(one, "sparsemax"):
        assert torch.equal(two(input_ids=tokens()).logits, plain)


def test_two_threads_with_two_models() -> None:
    networks, specs = [llama(), llama(num_hidden_layers=3)], ["sparsemax", "topk:k=2"]
    wanted = [
        reference_output(network, spec, input_ids=tokens()) for network, spec in zip(networks, specs, strict=True)
    ]
    errors: dict[int, list[float]] = {0: [], 1: []}

    def work(i: int) -> None:
        for _ in range(8):
            with torch.no_grad(), swap(networks[i], specs[i]):
                errors[i].append(relative_error(wanted[i], networks[i](input_ids=tokens()).logits))

    in_two_threads(work)
    assert [len(errors[i]) for i in range(2)] == [8, 8]
    assert max(errors[0] + errors[1]) < 2e-5
    assert not [name for name in AttentionInterface._global_mapping if name.startswith("abbe-")]


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", pytest.param("sparsemax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [llama, bert], ids=lambda build: build.__name__)
def test_no_matrix_of_all_queries_and_keys(build: Any, spec: str) -> None:
    network = build(max_position_embeddings=4096)
    with swap(network, spec), NoTensorAsLargeAs(4096 * 4096):  # not even one bool for each pair
        network(input_ids=tokens(4096, batch=1))


def test_a_loaded_model_can_be_swapped() -> None:
    @dataclass
    class Loaded:
        network: nn.Module

    network = llama()
    with swap(Loaded(network), "sparsemax") as swapped:
        assert swapped.network is network
        assert swapped.check(input_ids=tokens()) < 1e-5
