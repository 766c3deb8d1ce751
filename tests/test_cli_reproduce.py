"""`abbe reproduce`: what it prints and writes, and mistakes told in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest
import tiny_models
from typer.testing import CliRunner, Result

from abbe import cli, studies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 folder in the layout of the hub."""
    made = tmp_path_factory.mktemp("models") / "gpt2"
    tiny_models.gpt2(vocab_size=256).save_pretrained(made)  # type: ignore[operator]
    tiny_models.byte_tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("In the beginning there was a lens, and it was ground by hand. " * 40)
    return path


def run(*arguments: str | Path) -> Result:
    given = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(cli.app, given)


def test_page_figures_table_and_data(folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("reproduce", folder, "--text", text, "--quick", "--figure", "2a,3", "--out", out)
    assert result.exit_code == 0, result.output
    assert "statements hold" in result.stdout
    assert "24 min" in result.stdout  # the paper's time for figure 2a
    assert f"page: {out / 'reproduce.html'}" in result.stderr
    assert "about" in result.stderr  # the cost, before the work
    assert (out / "reproduce.html").read_text().lower().startswith("<!doctype html>")
    names = {path.name for path in (out / "figures").iterdir()}
    ends = (".png", "-dark.png", ".svg", "-dark.svg")
    assert names == {f"figure-{figure}{end}" for figure in ("2a", "3") for end in ends}
    assert len(pl.read_csv(out / "data" / "figure-3-heads.csv")) > 0


def test_json(folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("reproduce", folder, "--text", text, "--quick", "--figure", "2a", "--json", "--quiet", "--out", out)
    found = json.loads(result.stdout)
    assert {claim["figure"] for claim in found["claims"]} == {"2a"}
    assert found["settings"]["quick"] is True
    assert "about" not in result.stderr
    assert found == json.loads((out / "reproduction.json").read_text())


def test_folder_is_named_after_the_model(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("reproduce", folder, "--text", text, "--quick", "--figure", "3", "--quiet").exit_code == 0
    assert (tmp_path / "abbe-reproduce-gpt2-quick" / "reproduce.html").is_file()


@pytest.mark.parametrize(
    ("name", "want"), [("embedded", "embedded"), ("org/some model", "some-model"), ("../x/", "x"), ("..", "model")]
)
def test_file_names(name: str, want: str) -> None:
    assert cli._file_name(name) == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figure", "5"), "there is no figure 5: choose from 2a, 2b, 2c, 3, 4, or all"),
        (("--queries", "some"), "--queries is 'some', but must be a whole number, or all"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    folder: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["abbe", "reproduce", str(folder), "--out", str(tmp_path / "out"), *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert shown.startswith("abbe: ")
    assert message in shown
    assert shown.count("\n") == 1


def test_interrupt_is_told_in_one_line(
    folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "reproduce", interrupt)
    result = run("reproduce", folder, "--text", text, "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert result.stderr == "abbe: stopped; the same command goes on where it was\n"
