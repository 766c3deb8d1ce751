"""Every command that a result suggests runs as it is printed: options, model, text, plans and specs can be read."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import planted_capacity
import pytest
import tiny_models
from cli_runs import run

import abbe
from abbe import models, studies
from abbe.models import LoadedModel, read_text

BOOK = "a" * 768 + ("a" * 15 + "z") * 16
REPORT = ("--lengths", "16,32", "--queries", "4", "--sizes", "2,5", "--resamples", "10", "--quiet")
LIFT = (
    *("--with", "topk:k=4", "--length", "32", "--windows", "6", "--queries", "8", "--steps", "2", "--prompts", "1"),
    *("--resamples", "50", "--budget", "none", "--quiet"),
)


class Reached(Exception):
    """The study was called, and could read all that it was given."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, one of which can be lifted, and a text; their names have spaces."""
    place = tmp_path_factory.mktemp("suggested")
    planted, plain = planted_capacity.model(16, layers=4), tiny_models.gpt2(vocab_size=256)
    for name, network, context in (("planted model", planted.network, 64), ("untrained", plain, 64)):
        network.save_pretrained(place / name)  # type: ignore[operator]
        tiny_models.byte_tokenizer(context).save_pretrained(place / name)
    (place / "a book.txt").write_text(BOOK)
    return place


def made(here: Path, monkeypatch: pytest.MonkeyPatch, command: str, model: str, *options: str, out: str) -> None:
    monkeypatch.chdir(here)
    result = run(command, model, "--text", here / "a book.txt", *options, "--out", out)
    assert result.exit_code == 0, result.exception or result.output


def check_all(commands: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run each, with studies that only read what they are given; returns the names of the commands."""

    def reads(model: str, text: Any, specs: Iterable[str]) -> None:
        loaded = abbe.load(model)
        assert isinstance(loaded, LoadedModel)
        assert len(read_text(text).content) > 100
        for spec in specs:
            with abbe.swap(loaded, spec):
                pass
        raise Reached

    def stand_in(signature: inspect.Signature) -> Any:
        def study(**options: Any) -> None:
            signature.bind(**options)
            given = options.get("normalizers") or options.get("normalizer") or []
            specs = [given] if isinstance(given, str) else given
            assert not os.path.exists(options["folder"]) or os.path.isdir(options["folder"])
            reads(options.get("model", "embedded"), options.get("text"), specs)

        return study

    def export(model: str, plan: str, out: Path, text: Any = None) -> None:
        assert not out.exists()
        reads(model, text, [f"file:{plan}" if Path(plan).is_file() else plan])

    for name in ("report", "capacity", "compare", "lift"):
        monkeypatch.setattr(studies, name, stand_in(inspect.signature(getattr(studies, name))))
    monkeypatch.setattr(models, "export", export)
    names = []
    for command in commands:
        program, *words = shlex.split(command)
        result = run(*words)
        assert program == "abbe"
        assert isinstance(result.exception, Reached), f"{command}: {result.exception!r}\n{result.output}"
        names.append(words[0])
    return names


def suggested(folder: str) -> list[str]:
    return [step.command for step in abbe.open(folder).view().steps]


@pytest.mark.parametrize(
    ("model", "windows", "names"),
    [
        ("planted model", "2", {"report", "capacity"}),
        ("planted model", "8", {"capacity"}),
        ("untrained", "2", {"capacity", "compare"}),
    ],
)
def test_a_report(here: Path, monkeypatch: pytest.MonkeyPatch, model: str, windows: str, names: set[str]) -> None:
    out = f"report of {model} {windows}"
    made(here, monkeypatch, "report", model, *REPORT, "--windows", windows, out=out)
    commands = suggested(out)
    assert names <= set(check_all(commands, monkeypatch))
    for command in commands:
        words = shlex.split(command)
        if words[2] != "embedded":
            assert words[2] == model
            assert words[-2:] == ["--text", str(here / "a book.txt")]
        if words[1] == "report" and words[2] == model:
            assert words[words.index("--lengths") + 1] == "16,32"
            assert words[words.index("--queries") + 1] == "4"


def test_a_lift(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(here, monkeypatch, "lift", "planted model", *LIFT, out="the lift")
    assert check_all(suggested("the lift"), monkeypatch) == ["compare", "export", "lift"]


@pytest.mark.slow
def test_the_card_of_an_export(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(here, monkeypatch, "export", "untrained", "--plan", "softmax:temperature=0.5", out="sharper")
    lines = (here / "sharper" / "README.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith("abbe ")]
    (here / "sharper").rename(here / "before")  # else the folder is there
    assert check_all(commands, monkeypatch) == ["export"]
