"""plan(model, what): the same normalizers as a swap would install, with the model left as it is."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_models import bert, gpt2, llama, t5, tokens

import abbe
from abbe import AbbeError
from abbe.models import HeadGroup

RULES = {"layers.1": "topk:k=2", "*.heads.0,3": "ssmax:learn=true"}


def shown(groups_of: abbe.Plan | dict[str, tuple[HeadGroup, ...]]) -> dict[str, list[tuple[str, tuple[int, ...], str]]]:
    return {
        path: [(group.pattern, group.heads, str(group.normalizer)) for group in groups]
        for path, groups in groups_of.items()
    }


@pytest.mark.parametrize(
    "what", ["sparsemax", "layers.0=topk:k=3; *=softmax", RULES, abbe.normalizer("entmax:alpha=1.2")]
)
def test_a_plan_is_what_a_swap_installs(what: str) -> None:
    network = llama(num_hidden_layers=3)
    planned = abbe.plan(network, what)
    with abbe.swap(network, what) as swapped:
        assert shown(planned) == shown(swapped.normalizers)
        assert planned.layers == swapped.layers == list(planned)
    assert len(planned) == 3
    assert sum(len(group.heads) for group in planned[planned.layers[0]]) == 4


def test_the_model_stays_as_it_is() -> None:
    network = gpt2()
    before, config = network(input_ids=tokens()).logits, network.config
    settings, names = copy.deepcopy(config.to_dict()), [name for name, _ in network.named_modules()]
    abbe.plan(network, RULES)
    assert network.config is config
    assert config.to_dict() == settings
    assert [name for name, _ in network.named_modules()] == names
    assert not any(module._forward_pre_hooks for module in network.modules())
    assert torch.equal(network(input_ids=tokens()).logits, before)


def test_a_model_in_use_can_be_planned_for() -> None:
    network = gpt2()
    with abbe.swap(network, "sparsemax"):
        assert {group.normalizer.name for (group,) in abbe.plan(network, "entmax").values() if group.normalizer} == {
            "entmax"
        }
    with abbe.tap(network):
        assert len(abbe.plan(network, "entmax")) == 2


def test_the_table() -> None:
    assert repr(abbe.plan(gpt2(n_layer=6, n_head=8), {"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax"})) == (
        "Plan for GPT2LMHeadModel, 6 layers\n"
        "layers  heads    normalizer  pattern\n"
        "0-2     0,4      sparsemax   *.heads.0,4\n"
        "0-2     1-3,5-7  unchanged\n"
        "3       0-7      topk:k=32   layers.3\n"
        "4-5     0,4      sparsemax   *.heads.0,4\n"
        "4-5     1-3,5-7  unchanged"
    )
    assert repr(abbe.plan(gpt2(n_layer=1), "sparsemax")).startswith("Plan for GPT2LMHeadModel, 1 layer\n")


def test_a_saved_plan_is_read_by_swap(tmp_path: Path) -> None:
    network, file = llama(), tmp_path / "plan.safetensors"
    planned = abbe.plan(network, RULES)
    planned.save(file)
    assert shown(abbe.plan(network, f"file:{file}")) == shown(planned)
    with abbe.swap(network, f"file:{file}") as swapped:
        assert shown(swapped.normalizers) == shown(planned)


def test_mistakes_are_those_of_swap() -> None:
    with pytest.raises(AbbeError, match="plan needs a transformers model"):
        abbe.plan(torch.nn.Linear(2, 2), "sparsemax")
    for network, what in ((llama(), {"layers.7": "sparsemax"}), (bert(), "stick-breaking"), (t5(), "entmx")):
        with pytest.raises(AbbeError) as wrong:
            abbe.swap(network, what)
        with pytest.raises(AbbeError) as planned:
            abbe.plan(network, what)
        assert str(planned.value) == str(wrong.value)
