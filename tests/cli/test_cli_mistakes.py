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


def bare_folder(place: Place) -> Arguments:
    shutil.copytree(place.model, place.here / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    return [place.here / "bare", "--text", place.book]


def pickled(place: Place) -> Arguments:
    arguments = bare_folder(place)
    (place.here / "bare" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return arguments


def cut_off(place: Place) -> Arguments:
    shutil.copytree(place.model, place.here / "cut")
    weights = place.here / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return [place.here / "cut", "--text", place.book]


def empty_folder(place: Place) -> Arguments:
    (place.here / "empty").mkdir()
    return [place.here / "empty", "--text", place.book]


def text(content: bytes | None, name: str = "other.txt") -> Callable[[Place], Arguments]:
    def arguments(place: Place) -> Arguments:
        if content is not None:
            (place.here / name).write_bytes(content)
        return [place.model, "--text", name]

    return arguments


def text_folder(place: Place) -> Arguments:
    return [place.model, "--text", place.here]


def options(*given: str) -> Callable[[Place], Arguments]:
    return lambda place: [place.model, "--text", place.book, *given]


EVERYWHERE: dict[str, tuple[Callable[[Place], Arguments], str]] = {
    "typing error in a model's name": (model("embeded"), "unknown model 'embeded'. Did you mean 'embedded'?"),
    "no name": (model(" "), "the model has no name"),
    "no such folder": (model("./nowhere"), "there is no folder './nowhere', and it is not a hub id"),
    "no such GGUF file": (model("nowhere.gguf"), "there is no file nowhere.gguf"),
    "not pulled": (model("smollm2"), "run `abbe pull smollm2` first"),
    "hub id without network": (model("acme/small"), "not in the offline cache, and HF_HUB_OFFLINE is set"),
    "a file as model": (model("book.txt"), "book.txt is a file: give the folder that it lies in"),
    "empty folder": (empty_folder, "has no config.json"),
    "no weights": (bare_folder, "has no weights (*.safetensors)"),
    "pickle": (pickled, "has only pytorch_model.bin, a pickle, which can run code"),
    "weights cut off": (cut_off, "cannot read the model in"),
    "no such text": (text(None), "there is no text file other.txt"),
    "a folder as text": (text_folder, "is a folder: name the text files in it"),
    "empty text": (text(b" \n"), "other.txt is empty: there is no text to measure on"),
    "text too short": (text(b"a"), "other.txt has 1 tokens, too few for the shortest window"),
    "binary text": (text(b"\xff\xfe\x00\x01" * 500), "other.txt is not UTF-8 (byte 0xff at position 0, line 1)"),
    "queries in words": (options("--queries", "few"), "--queries is 'few', but must be a whole number, or all"),
    "queries as list": (options("--queries", "4,9"), "--queries is '4,9', but must be a whole number, or all"),
    "no queries": (options("--queries", "0"), "queries is 0, but must be a whole number >= 1"),
    "seed beyond 64 bits": (options("--seed", 23 * "9"), f"seed is {23 * '9'}"),
    "negative seed": (options("--seed", "-1"), "seed is -1"),
}
MEASURING = {
    "lengths in words": (options("--lengths", "16,many"), "--lengths is '16,many', but must be numbers separated by"),
    "lengths above the context": (options("--lengths", "128"), "above the model's context of 64"),
    "length 1": (options("--lengths", "1"), "window length 1 is too short"),
    "lengths twice": (options("--lengths", "16,16"), "lengths has duplicates"),
    "no windows": (options("--windows", "0"), "the number of windows is 0, but at least 1 of each length is needed"),
    "size 0": (options("--sizes", "0"), "sizes must hold whole numbers >= 1"),
    "sizes in words": (options("--sizes", "a"), "--sizes is 'a', but must be numbers"),
    "unknown vectors": (options("--vectors", "keys"), "vectors is 'keys', but must be one of"),
}
OF_ONE = {
    "unknown figure": ("reproduce", options("--figure", "5"), "there is no figure 5: choose from 2a, 2b, 2c, 3, 4"),
    "unknown normalizer": ("diagnose", options("--with", "sparsmax"), "Did you mean 'sparsemax'"),
    "temperature -1": ("diagnose", options("--temperatures", "-1"), "temperatures must be numbers > 0"),
    "temperature in words": ("diagnose", options("--temperatures", "warm"), "--temperatures is 'warm'"),
}
TABLE = [
    *((command, what, *case) for command in ON_MODELS for what, case in EVERYWHERE.items()),
    *((command, what, *case) for command in ("report", "diagnose") for what, case in MEASURING.items()),
    *((command, what, given, message) for what, (command, given, message) in OF_ONE.items()),
]


@pytest.mark.quick(28)
@pytest.mark.parametrize(("command", "what", "given", "message"), TABLE, ids=[f"{row[0]}-{row[1]}" for row in TABLE])
def test_one_line_and_nothing_written(
    command: str, what: str, given: Callable[[Place], Arguments], message: str, place: Place,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
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
