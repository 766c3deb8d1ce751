"""What learns in a swapped model: parameters on the model, gradients, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_models import builds, gpt2, llama, make, tokens

from abbe import AbbeError, Normalizer, Swap, normalizer, swap

LEARNED = "entmax:alpha=1.5,learn=true"


def loss_of(network: Any) -> torch.Tensor:
    loss: torch.Tensor = network(input_ids=tokens(), labels=tokens()).loss
    return loss


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (LEARNED, 1),
        ("learned-temperature", 1),
        ("asentmax:learn=true", 3),
        ("hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5,learn=true", 2),
        ("sparsemax", 0),
    ],
)
def test_every_head_of_every_layer_learns_a_value_of_its_own(spec: str, count: int) -> None:
    network = llama()
    own = len(list(network.parameters()))
    with swap(network, spec) as swapped:
        learned = list(swapped.parameters())
        added = [weight for name, weight in network.named_parameters() if name.startswith("abbe_normalizers.")]
        assert len(list(network.parameters())) == own + 2 * count
        assert {id(weight) for weight in learned} == {id(weight) for weight in added}
        assert [tuple(weight.shape) for weight in learned] == [(4, 1, 1)] * 2 * count


def test_heads_that_the_spec_or_the_pattern_says() -> None:
    with swap(llama(), {"*.heads.1-3": LEARNED}) as swapped:
        assert [tuple(weight.shape) for weight in swapped.parameters()] == [(3, 1, 1)] * 2
    with swap(llama(), f"{LEARNED},heads=1") as swapped:
        assert [tuple(weight.shape) for weight in swapped.parameters()] == [(1,)] * 2


def test_an_instance_is_shared_by_all_layers() -> None:
    made = normalizer(LEARNED)
    with swap(llama(), made) as swapped:
        assert [groups[0].normalizer for groups in swapped.normalizers.values()] == [made, made]
        assert len(list(swapped.parameters())) == 1


def test_the_models_moves_reach_the_parameters() -> None:
    network = llama()
    with swap(network, LEARNED) as swapped:
        network.to(torch.float64)
        assert {weight.dtype for weight in swapped.parameters()} == {torch.float64}
        assert not any(groups[0].normalizer.training for groups in swapped.normalizers.values())
        network.train()
        assert all(groups[0].normalizer.training for groups in swapped.normalizers.values())


@pytest.mark.parametrize("spec", [LEARNED, "learned-temperature", "sink:b=1,learn=true", "ssmax:learn=true"])
@builds(gpt2, llama)
def test_a_step_of_an_optimizer_lowers_the_loss(build: Any, spec: str) -> None:
    network = build()
    with swap(network, spec) as swapped:
        optimizer = torch.optim.SGD(swapped.parameters(), lr=0.01)
        before = loss_of(network)
        before.backward()
        gradients = [weight.grad.clone() for weight in swapped.parameters()]
        assert all(gradient.abs().min() > 0 for gradient in gradients)  # of every head of every layer
        optimizer.step()
        assert loss_of(network) < before
    assert all(weight.grad is not None for weight in network.parameters())


def test_gradients_are_those_of_differences() -> None:
    network = gpt2()  # a llama has norms in float32

    def loss_of(network: Any) -> torch.Tensor:  # the model's own is rounded to float32
        loss: torch.Tensor = network(input_ids=tokens()).logits.logsumexp(-1).mean()
        return loss

    with swap(network, {"*.heads.0,2": LEARNED}) as swapped:
        network.double()
        loss_of(network).backward()
        for weight in swapped.parameters():
            for place in range(2):
                step = torch.zeros_like(weight)
                step[place] = 1e-5
                with torch.no_grad():
                    weight += step
                    above = loss_of(network)
                    weight -= 2 * step
                    below = loss_of(network)
                    weight += step
                assert weight.grad is not None
                assert float(weight.grad[place]) == pytest.approx(float(above - below) / 2e-5, rel=1e-4, abs=1e-9)


def test_parameters_that_someone_else_froze_are_said_once() -> None:
    """As get_peft_model does: everything frozen, and what it adds learns."""
    network: Any = llama()
    with swap(network, LEARNED) as swapped:
        network.requires_grad_(False)
        loss_of(network)  # nothing learns: an evaluation
        network.model.layers[0].self_attn.v_proj.requires_grad_(True)
        with torch.no_grad():
            loss_of(network)
        with pytest.warns(
            UserWarning, match=r"of this swap were frozen .* call requires_grad_\(True\) on each"
        ) as said:
            loss_of(network)
        loss_of(network)  # no second warning, which would be an error
        assert len(said) == 1
        for parameter in swapped.parameters():
            parameter.requires_grad_(True)
        loss_of(network).backward()
        assert all(parameter.grad is not None for parameter in swapped.parameters())


def test_parameters_that_were_frozen_before_or_in_part_are_nobodys_mistake() -> None:
    network, frozen = llama(), normalizer(LEARNED).requires_grad_(False)
    with swap(network, frozen):
        loss_of(network)
    with swap(network, LEARNED) as swapped:
        next(swapped.parameters()).requires_grad_(False)
        loss_of(network)


def test_dropout_is_honoured_in_training_only() -> None:
    network = make("GPT2LMHeadModel", "GPT2Config", n_layer=1, n_head=2, n_embd=16, attn_pdrop=0.5, resid_pdrop=0)
    with torch.no_grad(), swap(network, "sparsemax"):
        calm = network(input_ids=tokens()).logits
        assert torch.equal(network(input_ids=tokens()).logits, calm)
        network.train()
        network.transformer.drop.eval()
        one, two = (network(input_ids=tokens()).logits for _ in range(2))
        assert not torch.equal(one, two)


def groups_of(swapped: Swap) -> dict[str, list[tuple[str, tuple[int, ...], str]]]:
    """What every head got, with the numbers it has learned."""
    return {
        name: [(group.pattern, group.heads, str(group.normalizer)) for group in groups]
        for name, groups in swapped.normalizers.items()
    }


def filled(network: Any, what: Any, path: Path) -> tuple[torch.Tensor, dict[str, Any]]:
    """The output and the groups with learned parameters that were moved by chance; they are saved."""
    with torch.no_grad(), swap(network, what) as swapped:
        for number, weight in enumerate(swapped.parameters()):
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
        swapped.save(path)
        return network(input_ids=tokens()).logits, groups_of(swapped)


@pytest.mark.parametrize(
    "what",
    [
        LEARNED,
        f"{LEARNED},heads=1",
        "topk:k=3",
        {"layers.0.heads.1,3": "learned-temperature", "*.heads.0": LEARNED, "layers.1": "sparsemax"},
        normalizer(LEARNED),
        "hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5,learn=true",
    ],
    ids=["learned", "one-value", "fixed", "patterns", "shared", "hybrid"],
)
def test_a_file_brings_back_the_swap(tmp_path: Path, what: Any) -> None:
    network, path = llama(), tmp_path / "my.safetensors"
    wanted, learned = filled(network, what, path)
    with torch.no_grad(), swap(network, f"file:{path}") as swapped:
        assert torch.equal(network(input_ids=tokens()).logits, wanted)
        assert groups_of(swapped) == learned
        shared = len({id(groups[0].normalizer) for groups in swapped.normalizers.values()})
        swapped.save(tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert shared == (1 if isinstance(what, Normalizer) else 2)
    if "learn" in str(what) and not isinstance(what, Normalizer):
        with swap(network, what) as fresh:
            assert groups_of(fresh) != learned


def test_what_the_file_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "my.safetensors"
    filled(llama(), {"layers.1.heads.2": LEARNED}, path)
    with safe_open(path, framework="pt") as file:
        facts, names = json.loads(file.metadata()["abbe_swap"]), list(file.keys())
    assert facts["model"] == "LlamaForCausalLM"
    assert facts["abbe"].count(".") == 2
    assert facts["specs"] == ["entmax:alpha=1.5,learn=true"]
    assert facts["layers"][1] == {
        "path": "model.layers.1.self_attn",
        "heads": 4,
        "groups": [
            {"pattern": "layers.1.heads.2", "heads": [2], "normalizer": 0},
            {"pattern": "", "heads": [0, 1, 3], "normalizer": None},
        ],
    }
    assert names == ["0.learned.alpha.raw"]


def test_files_that_are_none_or_of_another_architecture(tmp_path: Path) -> None:
    filled(llama(), LEARNED, tmp_path / "mine")
    (tmp_path / "text").write_text("no tensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    first = r"model\.layers\.0\.self_attn"
    for network, name, message in (
        (llama(num_hidden_layers=3), "mine", r"for a LlamaForCausalLM of 2 layers, this LlamaForCausalLM has 3$"),
        (
            llama(num_attention_heads=2),
            "mine",
            rf"{first} with 4 heads where this LlamaForCausalLM has {first} with 2$",
        ),
        (gpt2(), "mine", "is for a LlamaForCausalLM, and this model is a GPT2LMHeadModel; swap a Llama"),
        (llama(), "nowhere", "there is no file .*nowhere"),
        (llama(), "text", "is not a safetensors file"),
        (llama(), "other", r"was not written by Swap\.save"),
    ):
        with pytest.raises(AbbeError, match=message):
            swap(network, f"file:{tmp_path}/{name}")
    with pytest.raises(AbbeError, match="cannot write"), swap(llama(), LEARNED) as swapped:
        swapped.save(tmp_path / "no" / "folder.safetensors")


def test_a_normalizer_that_no_spec_makes_cannot_be_saved(tmp_path: Path) -> None:
    class Mine(type(normalizer("sparsemax"))):  # type: ignore[misc]
        name = "mine"

    with swap(llama(), Mine()) as swapped, pytest.raises(AbbeError, match="cannot save Mine: its spec 'mine'"):
        swapped.save(tmp_path / "my.safetensors")


# -- Files that were changed ------------------------------------------------------------------------------------------


RAW = "0.learned.alpha.raw"

Facts = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good file: one normalizer of four heads for each of two layers."""
    file = tmp_path / "my.safetensors"
    with swap(llama(), LEARNED) as swapped:
        swapped.save(file)
    return file


def contents(path: Path) -> tuple[Facts, Tensors]:
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        return json.loads(file.metadata()["abbe_swap"]), {name: file.get_tensor(name) for name in names}


def refusal(path: Path, text: str, tensors: Tensors) -> str:
    """What a swap says of the file with these contents; the model is left as it was."""
    save_file(tensors, path, {"abbe_swap": text})
    network = llama()
    before = network.config._attn_implementation
    with pytest.raises(AbbeError) as caught:
        swap(network, f"file:{path}")
    assert network.config._attn_implementation == before
    assert str(caught.value).startswith(f"{path} is ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_number_is_found_by_the_checksum(path: Path) -> None:
    facts, tensors = contents(path)
    tensors[RAW][0] += 1e-6
    assert "is damaged: its checksum is wrong" in refusal(path, json.dumps(facts), tensors)
    facts, tensors = contents(path)
    facts["layers"][0]["groups"][0]["normalizer"] = 1
    tensors[RAW][0] -= 1e-6
    assert "is damaged: its checksum is wrong" in refusal(path, json.dumps(facts), tensors)


@pytest.mark.parametrize("old", [False, True])
def test_a_file_that_nobody_changed_is_read_also_without_a_checksum(path: Path, old: bool) -> None:
    facts, tensors = contents(path)
    assert sorted(tensors) == [RAW, "1.learned.alpha.raw"]
    facts = {name: value for name, value in facts.items() if not old or name != "sha256"}
    save_file(tensors, path, {"abbe_swap": json.dumps(facts)})
    with swap(llama(), f"file:{path}") as swapped:
        assert [str(groups[0].normalizer) for groups in swapped.normalizers.values()] == [f"{LEARNED},heads=4"] * 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["", "{", "no JSON", "[" * 100_000], "its metadata is not JSON"),
        (["[]", "1", "null", '"text"'], "is not a JSON object"),
    ],
)
def test_no_json(path: Path, texts: list[str], message: str) -> None:
    tensors = contents(path)[1]
    assert all(message in refusal(path, text, tensors) for text in texts)


LAYER, GROUP = ("layers", 0), ("layers", 0, "groups", 0)
HEADS = "but must be whole numbers from 0 to 3"
ONCE = "does not name every head of model.layers.0.self_attn once"


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        (("model",), [None, 7], "does not name the model's class"),
        (("specs",), [None, "sparsemax", ["sparsemax", 3]], "its specs are not a list of strings"),
        (("layers",), [None, {"0": {}}, [1, 2]], "its layers are not a list of objects"),
        ((*LAYER, "path"), [3], "its layer 0 has no path or no number of heads"),
        ((*LAYER, "heads"), ["4", 4.0, True], "its layer 0 has no path or no number of heads"),
        ((*LAYER, "groups"), [{}, [[0]]], "the groups of its layer 0 are not a list of objects"),
        ((*GROUP, "pattern"), [1], "has no pattern"),
        ((*GROUP, "heads"), ["0123", [0.0, 1, 2, 3], [False, True, 2, 3], ["0", 1, 2, 3], [-4, 1, 2, 3]], HEADS),
        ((*GROUP, "heads"), [[0, 1, 2, 4], [[0], 1, 2, 3], []], HEADS),
        ((*GROUP, "heads"), [[0, 1, 2], [0, 1, 2, 2]], ONCE),
        ((*GROUP, "normalizer"), [-1, 2, True, 0.0, "0"], "has normalizer {value!r}, of 2 that the file holds"),
    ],
)
def test_entries_of_another_kind(path: Path, place: tuple[Any, ...], values: list[Any], message: str) -> None:
    facts, tensors = contents(path)
    *outer, name = place
    owner = reduce(getitem, outer, facts)
    for value in values:
        owner[name] = value
        assert message.format(value=value) in refusal(path, json.dumps(facts), tensors)
    del owner[name]
    missing = HEADS if message == ONCE else message.format(value=-1)
    assert missing in refusal(path, json.dumps(facts), tensors)


@pytest.mark.parametrize("spec", ["nosuch", "", "entmax:alpha=0", "entmax:alpha=1.5,learn=true,heads=999999999999999"])
def test_specs_that_make_nothing(path: Path, spec: str) -> None:
    facts, tensors = contents(path)
    facts["specs"][0] = spec
    assert f"it holds {spec!r}, which cannot be created" in refusal(path, json.dumps(facts), tensors)


def without(tensors: Tensors) -> None:
    del tensors[RAW]


def with_value(value: float, dtype: torch.dtype = torch.float32) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[RAW] = tensors[RAW].to(dtype)
        tensors[RAW][2] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, f"its numbers do not fit {LEARNED},heads=4"),
        (lambda tensors: tensors.update({"0.more": torch.zeros(1)}), f"its numbers do not fit {LEARNED},heads=4"),
        (lambda tensors: tensors.update({RAW: torch.zeros(3, 1, 1)}), f"its numbers do not fit {LEARNED},heads=4"),
        (lambda tensors: tensors.update({"2.learned.alpha.raw": torch.zeros(1)}), "belongs to none of its 2"),
        (lambda tensors: tensors.update({"-1.learned.alpha.raw": torch.zeros(1)}), "belongs to none of its 2"),
        (lambda tensors: tensors.update({"weight": torch.zeros(1)}), "'weight' belongs to none of its 2"),
        (with_value(1, torch.int64), f"{RAW!r} holds torch.int64, not floating-point numbers"),
        (with_value(1, torch.bool), f"{RAW!r} holds torch.bool, not floating-point numbers"),
        (with_value(float("nan")), f"{RAW!r} is not finite"),
        (with_value(float("inf")), f"{RAW!r} is not finite"),
        (with_value(1e300, torch.float64), f"{RAW!r} is not finite"),
    ],
    ids=["missing", "more", "shape", "third", "minus", "other", "int", "bool", "nan", "inf", "overflow"],
)
def test_tensors(path: Path, change: Callable[[Tensors], None], message: str) -> None:
    facts, tensors = contents(path)
    change(tensors)
    assert message in refusal(path, json.dumps(facts), tensors)


def test_another_format(path: Path) -> None:
    facts, tensors = contents(path)
    save_file(tensors, path, {"abbe_swap": json.dumps(facts | {"format": 2})})
    with pytest.raises(AbbeError, match=r"was written by abbe \S+, in a format that this abbe cannot read"):
        swap(llama(), f"file:{path}")


def test_another_class_with_the_same_layers(path: Path) -> None:
    facts, tensors = contents(path)
    line = refusal(path, json.dumps(facts | {"model": "MistralForCausalLM"}), tensors)
    assert line.endswith("is for a MistralForCausalLM, and this model is a LlamaForCausalLM; swap a MistralForCausalLM")
