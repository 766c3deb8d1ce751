"""Every mistake of a user that the commands on models can meet: one line that helps, exit code 2, nothing written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import pytest
from cli_runs import run_main

pytest_plugins = ("cli_fixtures",)
ON_MODELS = ("diagnose", "report", "reproduce")


class Place(NamedTuple):
    """Where a test runs: a whole model, a whole text, and an empty folder around them."""

    here: Path
    model: Path
    book: Path
    out: Path


@pytest.fixture
def place(folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return Place(tmp_path, folder, book, tmp_path / "out")


Arguments = list[str | Path]


def model(name: str) -> Callable[[Place], Arguments]:
    return lambda place: [name, "--text", place.book]


def cut_off(place: Place) -> Arguments:
    shutil.copytree(place.model, place.here / "cut")
    weights = place.here / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return [place.here / "cut", "--text", place.book]


def text(content: bytes | None, name: str = "other.txt") -> Callable[[Place], Arguments]:
    def arguments(place: Place) -> Arguments:
        if content is not None:
            (place.here / name).write_bytes(content)
        return [place.model, "--text", name]

    return arguments


def options(*given: str) -> Callable[[Place], Arguments]:
    return lambda place: [place.model, "--text", place.book, *given]


# One for each place at which a command can stop: other models and texts are in tests/models, other values of options in
# test_cli_wrong_values.py.
MISTAKES: dict[str, tuple[Callable[[Place], Arguments], str]] = {
    "typing error in a model's name": (model("embeded"), "unknown model 'embeded'. Did you mean 'embedded'?"),
    "no name": (model(" "), "the model has no name"),
    "not pulled": (model("smollm2"), "run `abbe pull smollm2` first"),
    "hub id without network": (model("acme/small"), "not in the offline cache, and HF_HUB_OFFLINE is set"),
    "weights cut off": (cut_off, "cannot read the model in"),
    "no such text": (text(None), "there is no text file other.txt"),
    "empty text": (text(b" \n"), "other.txt is empty: there is no text to measure on"),
    "text too short": (text(b"a"), "other.txt has 1 tokens, too few for the shortest window"),
    "queries as list": (options("--queries", "4,9"), "--queries is '4,9', but must be a whole number, or all"),
    "no queries": (options("--queries", "0"), "queries is 0, but must be a whole number >= 1"),
    "seed beyond 64 bits": (options("--seed", 23 * "9"), f"seed is {23 * '9'}"),
}


@pytest.mark.quick(15)
@pytest.mark.parametrize("command", ON_MODELS)
@pytest.mark.parametrize("what", MISTAKES)
def test_one_line_and_nothing_written(
    command: str, what: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, message = MISTAKES[what]
    assert run_main(monkeypatch, command, *given(place), "--out", place.out) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("abbe: ")
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not place.out.exists()


QUICK = {
    "report": ["--lengths", "16", "--windows", "1", "--queries", "2", "--sizes", "1,3", "--quiet"],
    "reproduce": ["--quick", "--figure", "3", "--windows", "1", "--queries", "2", "--quiet"],
    "diagnose": ["--lengths", "16", "--windows", "1", "--queries", "2", "--sizes", "1,3", "--quiet"],
}


@pytest.mark.parametrize("command", ON_MODELS)
def test_the_folder_of_a_run(
    command: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file, a file on the way, someone's own things, what no one can make, and another run are refused."""
    (place.here / "mine").mkdir()
    (place.here / "mine" / "letter.txt").write_text("dear")
    cases: list[tuple[Path, str]] = [
        (place.book, "is a file: name a folder"),
        (place.book / "below", f"cannot make the run folder {place.book / 'below'}: {place.book} is a file"),
        (place.here / "mine", "is not empty and holds no run: name a new folder (--out)"),
    ]
    if Path("/proc/self").exists():
        cases.append((Path("/proc/abbe"), "No such file or directory"))
    before = place.book.read_bytes()
    for out, message in cases:
        assert run_main(monkeypatch, command, place.model, "--text", place.book, *QUICK[command], "--out", out) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert place.book.read_bytes() == before
    assert [path.name for path in (place.here / "mine").iterdir()] == ["letter.txt"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", ON_MODELS)
def test_another_run_is_refused_and_the_same_one_goes_on(
    command: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder whose parent did not exist, too."""
    out = place.here / "a" / "b"
    words = [command, place.model, "--text", place.book, *QUICK[command], "--out", out]
    for _ in range(2):
        assert run_main(monkeypatch, *words) == 0
    capsys.readouterr()
    assert run_main(monkeypatch, *words, "--seed", "1") == 2
    assert f"{out} holds another run (different: seed): name a new folder (--out)" in capsys.readouterr().err
