"""Losses in overlapping windows, shared passages, and the files of a model: against loops and by reading them back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from load_scripts import script
from safetensors.torch import load_file

import abbe

corpus, evaluation, export = script("corpus"), script("evaluation"), script("export")

CONTEXT = 8


def network(**settings: Any) -> Any:
    return tiny_models.gpt2(vocab_size=300, n_positions=CONTEXT, **settings)


# Losses


def window_start(target: int) -> int:
    """Start of the first window of CONTEXT tokens, one every half context, that predicts this place."""
    start = 0
    while target > start + CONTEXT:
        start += CONTEXT // 2
    return start


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 10, 12, 13, 14, 30, 33])
def test_every_token_is_scored_once_with_its_window(length: int) -> None:
    model, stream = network(), np.random.default_rng(length).integers(0, 300, length)
    losses = evaluation.network_losses(model, stream, CONTEXT)
    assert losses.shape == (length - 1,)
    for target in range(1, length):
        start = window_start(target)
        assert target - start >= min(target, CONTEXT // 2)
        with torch.no_grad():
            logits = model(torch.from_numpy(stream[start:target])[None]).logits[0, -1]
        want = -float(torch.log_softmax(logits.double(), -1)[stream[target]])
        assert losses[target - 1] == pytest.approx(want, rel=1e-4)


def test_scores_count_bytes_and_tokens() -> None:
    scores = evaluation.scores("äb", np.array([0, 5, 6, 7]), {"one": lambda stream: np.full(len(stream) - 1, 2.0)})
    assert scores == {"held_out_bytes": 3, "tokens": 3, "one": 6.0}
    assert evaluation.total([scores, scores], ["one"]) == {"held_out_bytes": 6, "tokens": 6, "one": 12.0}


# Passages that come twice


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from("ab"), min_size=0, max_size=60), min_size=2, max_size=4))
def test_repeated_share_is_that_of_sets(texts: list[list[str]]) -> None:
    books = [corpus.Book(str(place), " ".join(words), " ".join(words[:25])) for place, words in enumerate(texts)]
    books[0] = corpus.Book("0", "", books[0].held_out)
    known = {passage for book in books for passage in passages(book.training)}
    seen = [passage for book in books for passage in passages(book.held_out)]
    want = sum(passage in known for passage in seen) / len(seen) if seen else 0.0
    assert evaluation.repeated_share(books) == pytest.approx(want)


def passages(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[place : place + 10]) for place in range(len(words) - 9)]


# Files


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(corpus, "VOCABULARY", 300)
    return corpus.train_tokenizer([corpus.Book("one", "the lens and the grid and the lens " * 50, "")])


def test_written_files_load_in_float32_with_rounded_weights(tokenizer: Any, tmp_path: Path) -> None:
    original = network()
    export.write_files(original, tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(export.FILES)
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in tmp_path.iterdir())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ours: Any = abbe.load(tmp_path).network
    for loaded in (plain, ours):
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
        for name, weight in original.named_parameters():
            assert torch.equal(loaded.get_parameter(name), weight.half().float()), name
    read_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "the lens, Ünïcode\n  and\tthe 🙂 grid"
    assert read_tokenizer(text)["input_ids"] == tokenizer.encode(text).ids
    assert read_tokenizer.decode(read_tokenizer(text)["input_ids"]) == text
    assert read_tokenizer.all_special_ids == [tokenizer.token_to_id(corpus.END_OF_TEXT)]
    assert {parameter.dtype for parameter in original.parameters()} == {torch.float32}


def test_too_many_bytes_fail_loudly(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * sum(parameter.numel() for parameter in network().parameters())
    monkeypatch.setattr(export, "LARGEST", size - 1)
    with pytest.raises(SystemExit, match="nothing was written"):
        export.write_files(network(), tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(export, "LARGEST", size)  # the header of the file comes on top
    with pytest.raises(SystemExit, match="make the network smaller"):
        export.write_files(network(), tokenizer, tmp_path, corpus.END_OF_TEXT)


@pytest.mark.parametrize("value", [1e6, math.nan, -math.inf])
def test_numbers_that_float16_cannot_hold(value: float, tokenizer: Any, tmp_path: Path) -> None:
    damaged = network()
    damaged.transformer.h[1].mlp.c_fc.weight.data[2, 3] = value
    with pytest.raises(SystemExit, match=r"h\.1\.mlp\.c_fc\.weight holds NaN or numbers too large"):
        export.write_files(damaged, tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert not list(tmp_path.iterdir())
