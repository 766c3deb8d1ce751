"""A file of a swap that somebody changed is refused in one line, whatever was changed."""

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
from tiny_models import llama

from abbe import AbbeError, swap

LEARNED = "entmax:alpha=1.5,learn=true"
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
