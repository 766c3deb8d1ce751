"""A tap or swap that would have no effect is an error of the first forward pass; parts that do not run are none."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tiny_models import SMALL, gpt2, llama, make, t5, text_pair, tokens
from torch import Tensor, nn

from abbe import AbbeError, swap, tap

pytestmark = pytest.mark.usefixtures("no_grad")
OPEN = {"swap": lambda network: swap(network, "sparsemax"), "tap": tap}


class Replaced(nn.Module):
    """Holds an attention module and never calls it, as libraries do that compute attention themselves."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return hidden_states, None


@pytest.mark.parametrize("how", OPEN)
@pytest.mark.parametrize("layers", [(0, 1), (1,)], ids=["all", "one"])
def test_attention_that_is_replaced_is_named(how: str, layers: tuple[int, ...]) -> None:
    network: Any = llama()
    for number in layers:
        network.model.layers[number].self_attn = Replaced(network.model.layers[number].self_attn)
    plain = network(input_ids=tokens()).logits
    path = rf"model\.layers\.{layers[0]}\.self_attn\.original"
    with OPEN[how](network) as session:
        for run in (network, session.check):
            with pytest.raises(
                AbbeError, match=rf"^unsupported: Replaced ran without the attention function of {path}, so"
            ):
                run(input_ids=tokens())
    assert torch.equal(network(input_ids=tokens()).logits, plain)


@pytest.mark.parametrize("how", OPEN)
def test_a_module_that_attends_by_another_function_is_named(how: str) -> None:
    network: Any = llama()
    attention = network.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **_: (hidden_states, None)
    with (
        OPEN[how](network),
        pytest.raises(
            AbbeError, match=r"LlamaAttention ran without the attention function of model\.layers\.1\.self_attn"
        ),
    ):
        network(input_ids=tokens())


def test_a_network_that_calls_none_of_its_layers() -> None:
    network: Any = gpt2()
    result = network.transformer(input_ids=tokens())
    network.transformer.forward = lambda *_, **__: result
    with (
        swap(network, "sparsemax"),
        pytest.raises(AbbeError, match="GPT2LMHeadModel ran without the attention function of"),
    ):
        network(input_ids=tokens())


def test_parts_that_do_not_run_are_fine() -> None:
    """An encoder whose states are given, cross attention without anything to read, and a layer that is left out."""
    network, pair = t5(), text_pair()
    states = network.encoder(input_ids=pair["input_ids"])
    with swap(network, "softmax"):
        network(encoder_outputs=states, decoder_input_ids=pair["decoder_input_ids"])
        network(**pair)
    crossing = gpt2(add_cross_attention=True)
    with swap(crossing, "softmax"):
        crossing(input_ids=tokens())
    dropping: Any = make("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32, **OPT, layerdrop=0.5)
    with swap(dropping.train(), "softmax"), torch.random.fork_rng():
        torch.manual_seed(3)  # drops all six layers in the first pass
        for _ in range(3):
            dropping(input_ids=tokens())


OPT = {key: value for key, value in (SMALL | {"num_hidden_layers": 6}).items() if key != "intermediate_size"}


def test_only_the_first_pass_is_watched() -> None:
    network = llama()
    hooks = lambda: sum(len(module._forward_hooks) for module in network.modules())  # noqa: E731
    with swap(network, "sparsemax"):
        assert hooks() == 5  # two attention modules, two layers, and the network
        assert b"abbe" not in pickle.dumps(network)
        network(input_ids=tokens())
        assert hooks() == 0
    with swap(network, "sparsemax"):
        pass
    assert hooks() == 0
