"""`abbe diagnose`: what it prints and writes, its exit codes, and mistakes told in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tiny_models
from typer.testing import CliRunner, Result

import abbe
from abbe import cli, studies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and its tokenizer on disk."""
    made = tmp_path_factory.mktemp("models") / "tiny"
    tiny_models.gpt2(vocab_size=256).save_pretrained(made)  # type: ignore[operator]
    tiny_models.byte_tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("In the beginning there was a lens, and it was ground by hand. " * 40)
    return path


QUICK = ("--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3")


def run(*arguments: str | Path) -> Result:
    given = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(cli.app, given)


def test_table_and_folder(folder: Path, text: Path, tmp_path: Path) -> None:
    result = run("diagnose", folder, "--text", text, *QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "mean over 8 heads, windows of 32 tokens" in result.stdout
    assert "separability" in result.stdout
    assert "high means that the weight is spread over many keys" in result.stdout
    assert "self-check error" in result.stderr
    assert "4 windows, 96 tokens: about" in result.stderr
    assert result.stderr.endswith(f"wrote {tmp_path / 'run'}\n")
    saved = abbe.open_run(tmp_path / "run")
    assert saved.manifest["text"]["name"] == "book.txt"
    assert saved.manifest["settings"]["grid"] == [1, 3]


def test_json_lines_are_the_whole_table(folder: Path, text: Path, tmp_path: Path) -> None:
    result = run("diagnose", folder, "--text", text, *QUICK, "--json", "--quiet", "--out", tmp_path / "run")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows == abbe.open_run(tmp_path / "run").heads.to_dicts()
    assert result.stderr == f"wrote {tmp_path / 'run'}\n"


def test_standard_input(folder: Path, text: Path) -> None:
    given = [*map(str, ("diagnose", folder, "--text", "-", *QUICK, "--json", "--quiet"))]
    piped = CliRunner().invoke(cli.app, given, input=text.read_text())
    from_file = run("diagnose", folder, "--text", text, *QUICK, "--json", "--quiet")
    assert piped.stdout == from_file.stdout != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "16,many"], "--lengths is '16,many', but must be numbers separated by commas"),
        (["--lengths", "128"], "above the model's context of 64"),
        (["--sizes", "0"], "grid must hold whole numbers >= 1"),
        (["--queries", "few"], "--queries is 'few'"),
        (["--queries", "4,9"], "--queries is '4,9', but must be a whole number, or all"),
        (["--seed", "99999999999999999999999"], "seed is 99999999999999999999999"),
        (["--temperatures", "-1"], "temperatures must be numbers > 0"),
        (["--vectors", "keys"], "vectors is 'keys'"),
        (["--normalizer", "sparsmax"], "Did you mean 'sparsemax'"),
        (["--text", "no-such.txt"], "no text file no-such.txt"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, folder: Path, text: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "run"
    command = ["abbe", "diagnose", str(folder), "--text", str(text), "--out", str(out), *arguments]
    monkeypatch.setattr(sys, "argv", command if "--text" not in arguments else [*command[:3], *command[5:]])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not out.exists()


def test_stopping_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "diagnose", stop)
    for arguments, message in (([], "with --out FOLDER"), (["--out", "run"], "goes on where it was")):
        monkeypatch.setattr(sys, "argv", ["abbe", "diagnose", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == 130
        assert message in capsys.readouterr().err
