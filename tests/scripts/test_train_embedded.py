"""The training command from texts to model card, with a network small enough for a test."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from load_scripts import script

import abbe

corpus, export, model_card = script("corpus"), script("export"), script("model_card")
muon, train_embedded = script("muon"), script("train_embedded")

WORDS = ["lens", "light", "grid", "wave", "edge", "limit", "mirror", "stage", "slide", "paper", "glass", "focus"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the script on two small texts, into folders of this test."""
    shape = {
        "LAYERS": 2,
        "HEADS": 2,
        "WIDTH": 16,
        "CONTEXT": 544,
        "BATCH": 1088,
        "STAGES": tuple(corpus.Stage(*stage) for stage in ((0, 64, 0.5), (2, 544, 0.5), (9, 32, 0.25))),
    }
    for name, value in (shape | {"VALIDATE_EVERY": 2}).items():
        monkeypatch.setattr(train_embedded, name, value)
    monkeypatch.setattr(corpus, "VOCABULARY", 520)
    draw = random.Random(4)
    (tmp_path / "texts").mkdir()
    for name in ("first", "second"):
        lines = [" ".join(draw.choice(WORDS) + str(draw.randrange(90)) for _ in range(9)) for _ in range(900)]
        (tmp_path / "texts" / f"{name}.txt").write_text("\n".join(lines))

    def run(steps: int, *more: str) -> Path:
        places = {"--texts": "texts", "--work": "work", "--out": "out", "--figure": "figures/loss.svg"}
        given = [part for option, place in places.items() for part in (option, str(tmp_path / place))]
        monkeypatch.setattr(sys, "argv", ["train_embedded.py", *given, "--steps", str(steps), *more])
        train_embedded.main()
        return tmp_path / "out"

    return run


@pytest.mark.slow
def test_trains_writes_measures_and_does_so_again(command: Any, tmp_path: Path) -> None:
    out = command(4, "--note", "with other work on the same cores")
    assert sorted(path.name for path in out.iterdir()) == sorted([*export.FILES, "facts.json", "MODEL_CARD.md"])
    card, first = (out / "MODEL_CARD.md").read_text(), {path.name: path.read_bytes() for path in out.iterdir()}
    check_card(card, out)
    assert (tmp_path / "figures" / "loss.svg").read_text().startswith("<svg")
    assert "(../figures/loss.svg)" in card
    assert "hours on two cores (with other work on the same cores)" in card.replace("\n", " ")

    for path in out.iterdir():
        path.unlink()
    command(4, "--note", "with other work on the same cores")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def check_card(card: str, out: Path) -> None:
    """Numbers of the card against the files and against a plain measurement."""
    for name in (*export.FILES, "facts.json"):
        assert f"| {name} | `{export.sha256(out / name)}` |" in card
    model: Any = abbe.load(out)
    size = sum(parameter.numel() for parameter in model.network.parameters())
    facts = json.loads((out / "facts.json").read_text())
    assert facts["parameters"] == size
    assert f"{size:,} parameters" in card
    held_out = [book.held_out for book in corpus.read_books(out.parent / "texts")]
    nats = tokens = 0.0
    for text in held_out:
        ids = torch.tensor([[0, *model.tokenizer(text, verbose=False)["input_ids"]]])
        for start in range(0, ids.shape[1] - 1, 272):
            window = ids[:, start : start + 545]
            new = 0 if start == 0 else 272
            if window.shape[1] - 1 > new:
                logits = model.network(window[:, :-1]).logits[0, new:]
                nats += float(torch.nn.functional.cross_entropy(logits, window[0, 1 + new :], reduction="sum"))
                tokens += window.shape[1] - 1 - new
    whole = sum(len(text.encode()) for text in held_out)
    assert f"{whole:,} bytes in {tokens:,.0f} tokens" in card
    row = re.search(r"\| all held-out text \| ([\d.]+) \| ([\d.]+) \|", card)
    assert row is not None
    assert float(row[1]) == pytest.approx(nats / tokens, abs=6e-4)
    assert float(row[2]) == pytest.approx(nats / whole / 0.6931471805599453, abs=6e-4)
    assert facts["held_out_bits_per_byte"] == pytest.approx(float(row[2]), abs=6e-4)
    assert card.count("| layer | head 0 | head 1 |") == 4
    assert "The trained model has not learned attention" in card
    assert "4 steps of 1,088 tokens: 4,352 tokens" in card
    assert "Windows of 64 tokens from step 0, 544 tokens from step 2. " in card.replace("\n", " ")
    assert "--steps 4" in card
    assert "| 4 | " in card
    assert "nan" not in card


@pytest.mark.slow
def test_stopped_run_goes_on_before_anything_is_written(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_finish(*_arguments: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(train_embedded, "finish", no_finish)
        out = command(2)
    assert not out.exists()
    assert "4 steps of" in (command(4) / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize(
    ("values", "line"), [([1.0], "▁"), ([3.0, 3.0], "▁▁"), ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"), ([5.0, 1.0], "█▁")]
)
def test_sparkline(values: list[float], line: str) -> None:
    assert model_card.sparkline(values) == line


# -- Its parts --------------------------------------------------------------------------------------------------------


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
