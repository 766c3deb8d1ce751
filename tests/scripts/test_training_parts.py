"""Batches, learning rates and the optimizer of the training script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from load_scripts import script

corpus, muon, train_embedded = script("corpus"), script("muon"), script("train_embedded")


@pytest.fixture(scope="module")
def batches() -> Any:
    text = "\n".join(f"line {i} of a text with the numbers {i * i % 97} and {i % 13}" for i in range(900))
    books = [corpus.Book("made up", text, "the held-out end")]
    stages = (corpus.Stage(0, 16, 1 / 4), corpus.Stage(3, 64, 1 / 2))
    return corpus.Batches(books, corpus.train_tokenizer(books), 256, stages, seed=5)


def test_batches_are_the_same_in_every_run_and_differ(batches: Any) -> None:
    assert torch.equal(batches[1], batches[1])
    assert not torch.equal(batches[1], batches[2])


def test_stages(batches: Any) -> None:
    assert [tuple(batches[number].shape) for number in (0, 2, 3, 9)] == [(16, 17), (16, 17), (4, 65), (4, 65)]


@pytest.mark.parametrize(("number", "rows"), [(0, 4), (1, 4), (4, 2)])
def test_share_of_rows_with_a_passage_that_comes_twice(batches: Any, number: int, rows: int, monkeypatch: Any) -> None:
    changed = batches[number]
    monkeypatch.setattr(corpus, "repeat_a_passage", lambda window, random: None)
    assert int((changed != batches[number]).any(1).sum()) == rows


@pytest.mark.parametrize("seed", range(30))
def test_passage_comes_twice(seed: int) -> None:
    window = np.arange(65)
    corpus.repeat_a_passage(window, np.random.default_rng(seed))
    moved = np.flatnonzero(window != np.arange(65))
    place, length = moved[0], len(moved)
    assert 4 <= length < 28
    assert list(moved) == list(range(place, place + length))
    assert list(window[moved]) == list(range(length))


def test_prose_is_joined_and_verse_is_not() -> None:
    prose = "\n".join(["a line of prose that was broken at the edge of the page"] * 3)
    verse = "a line of verse\nand another\nand the last"
    assert corpus.unwrapped(f"{prose}\n\n{verse}") == f"{prose.replace(chr(10), ' ')}\n\n{verse}"


def test_held_out_part_is_the_end_of_every_book(tmp_path: Path) -> None:
    lines = [f"line {i}\n" for i in range(400)]
    (tmp_path / "book.txt").write_text("".join(lines))
    book = corpus.read_books(tmp_path)[0]
    assert book.training + book.held_out == "".join(lines)
    assert book.training.endswith("\n")
    assert len(book.held_out) / len("".join(lines)) == pytest.approx(0.05, abs=0.005)
    with pytest.raises(SystemExit, match=r"no \.txt file"):
        corpus.read_books(tmp_path / "nowhere")


@pytest.mark.parametrize("shape", [(8, 8), (8, 24), (24, 8)])
def test_updates_are_nearly_orthogonal(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(muon.orthogonal(matrix))
    assert float(singular.min()) > 0.6
    assert float(singular.max()) < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert float((muon.orthogonal(matrix) * (u @ v)).sum() / min(shape)) > 0.8


def test_parts_of_a_fused_matrix_learn_by_themselves() -> None:
    """A part whose gradients are a thousand times smaller takes a step as long as the others."""
    parameter = torch.nn.Parameter(torch.zeros(8, 24))
    gradient = torch.randn(8, 24, generator=torch.Generator().manual_seed(1))
    gradient[:, :8] /= 1000
    parameter.grad = gradient
    muon.Muon([{"params": [parameter], "parts": 3}], lr=0.1, weight_decay=0.0).step()
    lengths = [float(part.norm()) for part in parameter.detach().chunk(3, 1)]
    assert max(lengths) < 1.5 * min(lengths)
