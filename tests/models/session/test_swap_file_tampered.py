"""A file of a swap that somebody changed is refused in one line, whatever was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_a_file_of_an_older_version_has_no_checksum(path: Path) -> None:
    facts, tensors = contents(path)
    del facts["sha256"]
    save_file(tensors, path, {"abbe_swap": json.dumps(facts)})
    with swap(llama(), f"file:{path}") as swapped:
        assert len(swapped.normalizers) == 2


def test_the_file_that_nobody_changed_is_read(path: Path) -> None:
    facts, tensors = contents(path)
    assert sorted(tensors) == [RAW, "1.learned.alpha.raw"]
    save_file(tensors, path, {"abbe_swap": json.dumps(facts)})
    with swap(llama(), f"file:{path}") as swapped:
        assert [str(groups[0].normalizer) for groups in swapped.normalizers.values()] == [f"{LEARNED},heads=4"] * 2


@pytest.mark.parametrize("text", ["", "{", "no JSON", "[" * 100_000])
def test_no_json(path: Path, text: str) -> None:
    assert refusal(path, text, contents(path)[1]).endswith("its metadata is not JSON")


@pytest.mark.parametrize("text", ["[]", "1", "null", '"text"'])
def test_json_of_another_kind(path: Path, text: str) -> None:
    assert refusal(path, text, contents(path)[1]).endswith("is not a JSON object")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model", None, "does not name the model's class"),
        ("model", 7, "does not name the model's class"),
        ("specs", None, "its specs are not a list of strings"),
        ("specs", "sparsemax", "its specs are not a list of strings"),
        ("specs", ["sparsemax", 3], "its specs are not a list of strings"),
        ("layers", None, "its layers are not a list of objects"),
        ("layers", {"0": {}}, "its layers are not a list of objects"),
        ("layers", [1, 2], "its layers are not a list of objects"),
    ],
)
def test_facts_of_another_kind(path: Path, name: str, value: object, message: str) -> None:
    facts, tensors = contents(path)
    assert message in refusal(path, json.dumps(facts | {name: value}), tensors)
    del facts[name]
    assert message in refusal(path, json.dumps(facts), tensors)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("path", 3, "its layer 0 has no path or no number of heads"),
        ("heads", "4", "its layer 0 has no path or no number of heads"),
        ("heads", 4.0, "its layer 0 has no path or no number of heads"),
        ("heads", True, "its layer 0 has no path or no number of heads"),
        ("groups", {}, "the groups of its layer 0 are not a list of objects"),
        ("groups", [[0]], "the groups of its layer 0 are not a list of objects"),
    ],
)
def test_layers_of_another_kind(path: Path, name: str, value: object, message: str) -> None:
    facts, tensors = contents(path)
    facts["layers"][0][name] = value
    assert message in refusal(path, json.dumps(facts), tensors)
    del facts["layers"][0][name]
    assert message in refusal(path, json.dumps(facts), tensors)


HEADS = "but must be whole numbers from 0 to 3"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pattern", 1, "has no pattern"),
        ("heads", "0123", HEADS),
        ("heads", [0.0, 1, 2, 3], HEADS),
        ("heads", [False, True, 2, 3], HEADS),
        ("heads", ["0", 1, 2, 3], HEADS),
        ("heads", [-4, 1, 2, 3], HEADS),
        ("heads", [0, 1, 2, 4], HEADS),
        ("heads", [[0], 1, 2, 3], HEADS),
        ("heads", [], HEADS),
        ("heads", [0, 1, 2], "does not name every head of model.layers.0.self_attn once"),
        ("heads", [0, 1, 2, 2], "does not name every head of model.layers.0.self_attn once"),
        ("normalizer", -1, "has normalizer -1, of 2 that the file holds"),
        ("normalizer", 2, "has normalizer 2, of 2 that the file holds"),
        ("normalizer", True, "has normalizer True, of 2 that the file holds"),
        ("normalizer", 0.0, "has normalizer 0.0, of 2 that the file holds"),
        ("normalizer", "0", "has normalizer '0', of 2 that the file holds"),
    ],
)
def test_groups(path: Path, name: str, value: object, message: str) -> None:
    facts, tensors = contents(path)
    facts["layers"][0]["groups"][0][name] = value
    assert message in refusal(path, json.dumps(facts), tensors)


@pytest.mark.parametrize("name", ["pattern", "heads", "normalizer"])
def test_groups_that_lack_something(path: Path, name: str) -> None:
    facts, tensors = contents(path)
    del facts["layers"][0]["groups"][0][name]
    assert "is damaged" in refusal(path, json.dumps(facts), tensors)


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


def test_another_class_with_the_same_layers(path: Path) -> None:
    facts, tensors = contents(path)
    line = refusal(path, json.dumps(facts | {"model": "MistralForCausalLM"}), tensors)
    assert line.endswith("is for a MistralForCausalLM, and this model is a LlamaForCausalLM; swap a MistralForCausalLM")
