"""The model that comes with abbe: what it says about itself, its files, its tokenizer, and a damaged installation."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from folders import refusal
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import abbe
from abbe.models import LoadedModel, load

FOLDER = Path(str(resources.files("abbe").joinpath("embedded")))
NAMES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "facts.json")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load("embedded")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its files, to be damaged."""
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    return shutil.copytree(FOLDER, tmp_path / "embedded")


def test_loads_as_a_decoder_ready_to_be_measured(model: LoadedModel) -> None:
    assert (model.name, model.kind, model.context, model.source) == ("abbe-gpt2-5M", "decoder", 1024, "embedded")
    assert load("abbe-gpt2-5M").fingerprint == model.fingerprint  # the name that pages and tables show
    network: Any = model.network
    assert (network.config.n_layer, network.config.n_head, network.config.n_embd) == (6, 8, 256)
    assert network.config.vocab_size == len(model.tokenizer) == 2048
    assert network.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_says_what_it_is_with_the_numbers_of_its_run(model: LoadedModel, copy: Path) -> None:
    facts = json.loads((copy / "facts.json").read_text())
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.network.parameters())
    assert "6 layers x 8 heads" in model.about
    (copy / "facts.json").write_text(json.dumps(facts | {"held_out_bits_per_byte": 1.2345, "books": 3}))
    assert "trained on 3 public-domain texts" in load("embedded").about
    assert "1.23 bits per byte on held-out text" in load("embedded").about
    assert "\n" not in load("embedded").about


def test_is_the_same_every_time_and_leaves_the_generator_alone(model: LoadedModel) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    again = load("embedded")
    assert torch.equal(torch.rand(3), expected)
    assert again.fingerprint == model.fingerprint


def test_weights_are_half_precision_and_stored_once() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}
    assert not any("lm_head" in name for name in names)


def test_transformers_loads_the_folder_by_itself(model: LoadedModel) -> None:
    own: Any = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    tokens = torch.tensor([tokenizer("It was the best of times, it was the worst of times.")["input_ids"]])
    assert own.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(own.eval()(tokens).logits, model.network(tokens).logits)
    assert tokens[0].tolist() == model.tokenizer("It was the best of times, it was the worst of times.")["input_ids"]


@given(text=st.text(max_size=60))
def test_tokenizer_writes_any_text(model: LoadedModel, text: str) -> None:
    encoded = model.tokenizer(text, return_offsets_mapping=True)
    assert model.tokenizer.decode(encoded["input_ids"]) == text
    assert all(0 <= start < end <= len(text) for start, end in encoded["offset_mapping"])


def test_predicts_english_far_better_than_the_best_table_of_token_shares(model: LoadedModel) -> None:
    """The shares are those of the very text that is predicted, which no model could know before."""
    tokens = torch.tensor(model.tokenizer(abbe.read_text().content, verbose=False)["input_ids"][:1025])
    with torch.no_grad():
        logits = model.network(tokens[None, :-1]).logits[0]
    loss = float(torch.nn.functional.cross_entropy(logits, tokens[1:]))
    counts = Counter(tokens[1:].tolist())
    shares = -sum(count / 1024 * math.log(count / 1024) for count in counts.values())
    assert loss < shares - 0.5
    facts = json.loads((FOLDER / "facts.json").read_text())
    assert facts["held_out_bits_per_byte"] < facts["five_gram_bits_per_byte"]


def test_card_has_the_hashes_of_the_files() -> None:
    card = (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| {name} | `{sha256((FOLDER / name).read_bytes()).hexdigest()}` |" in card


# A damaged installation


@pytest.mark.parametrize("name", NAMES)
def test_missing_file_is_a_damaged_installation(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert refusal("embedded") == f"this installation is damaged: the embedded model lacks {name}; install abbe again"


@pytest.mark.parametrize("content", ["{", "[]", '{"layers": 6}'])
def test_facts_that_cannot_be_read(copy: Path, content: str) -> None:
    (copy / "facts.json").write_text(content)
    assert refusal("embedded").startswith(
        "this installation is damaged: the embedded model's facts.json cannot be read"
    )
