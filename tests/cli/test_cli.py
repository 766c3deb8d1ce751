"""`abbe verify`: exit codes, JSON, the page, help, and mistakes told in one line."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import run, run_main
from parsed_page import Page

from abbe import studies
from abbe.bounds import catalogue
from abbe.studies import Verdict, Verdicts, verify

NAMES = [statement.name for statement in catalogue()]


def made_up(**changes: object) -> Verdict:
    (verdict,) = verify(["spectral"], 5)
    return dataclasses.replace(verdict, **changes)


def answering(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
    monkeypatch.setattr(studies, "verify", lambda *args, **more: Verdicts(verdicts, 1, 0))


def test_a_table_and_exit_code_0() -> None:
    result = run("verify", "spectral", "spectral-paper", "vanishing", "--trials", "100")
    assert result.exit_code == 0
    for word in ("spectral", "spectral-paper", "vanishing", "gradient", "weights", "paper"):
        assert word in result.stdout
    for word in ("holds, tight", "REFUTED", "measured", "2 hold, 1 refuted, all as the catalogue says."):
        assert word in result.stdout
    assert "\x1b[" not in result.stdout
    assert not re.search(r"[…]", result.stdout)


@pytest.mark.slow
def test_a_narrow_table_cuts_no_number() -> None:
    result = run("verify", "spectral", "expected-distance-ceiling", "--trials", "2000", columns=80)
    (line,) = [line for line in result.stdout.splitlines() if line.strip().startswith("spectral ")]
    assert re.search(r" 0\.\d{3} +[01]\.\d{4} ", line)
    assert "…" not in re.sub(r"expected-distance\S*|this \S*", "", result.stdout)


def test_a_surprise_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, made_up(), made_up(name="other", expected=False))
    result = run("verify")
    assert result.exit_code == 1
    assert "UNEXPECTED" in result.stdout
    assert "NOT as expected: other." in result.stdout
    answering(monkeypatch, made_up(name="other", expected=False, holds=False, counterexample="logits=(0, 0)"))
    result = run("verify", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdicts"][0]["expected"] is False
    assert run_main(monkeypatch, "verify", "--json") == 1
    answering(monkeypatch, made_up(), made_up(status="refuted", holds=False))
    assert run("verify").exit_code == 0


def test_trials_and_seed_reach_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(studies, "verify", lambda *args, **more: asked.extend(args[:3]) or Verdicts([made_up()], 1, 0))
    run("verify", "spectral", "change", "--trials", "7", "--seed", "3")
    assert (list(asked[0]), asked[1:]) == (["spectral", "change"], [7, 3])
    asked.clear()
    run("verify")
    assert (list(asked[0]), asked[1:]) == ([], [2000, 0])


def test_json() -> None:
    result = run("verify", "spectral", "spectral-paper", "--trials", "60", "--seed", "2", "--json")
    assert result.exit_code == 0
    verdicts = json.loads(result.stdout)["verdicts"]
    wanted = verify(["spectral", "spectral-paper"], 60, 2)
    for record, verdict in zip(verdicts, wanted, strict=True):
        assert {**record, "seconds": 0} == {**dataclasses.asdict(verdict), "seconds": 0}
    assert [record["holds"] for record in verdicts] == [True, False]
    assert [record["counterexample"] != "" for record in verdicts] == [False, True]


def test_html_is_self_contained(tmp_path: Path) -> None:
    page = tmp_path / "theory.html"
    result = run("verify", "spectral", "spectral-paper", "theorem-1", "--trials", "60", "--html", str(page))
    assert result.exit_code == 0
    assert f"wrote {page}" in result.stderr
    assert "spectral-paper" in result.stdout
    text = page.read_text(encoding="utf-8")
    for forbidden in ("http://", "https://", "<script src", "@import", "url("):
        assert forbidden not in text
    read = Page(text)
    assert read.asks == []
    opened = [tag for tag in read.tags if tag not in ("meta", "link", "br", "img", "hr", "input")]
    assert len(opened) == len(re.findall(r"</\w+>|/>", text))
    assert text.startswith("<!doctype html>")
    for name in ("spectral-paper", "theorem-1", "REFUTED", "holds, tight", "2 hold, 1 refuted", "60", "gradient"):
        assert name in read.text
    (refuted,) = verify(["spectral-paper"], 60)
    assert refuted.counterexample in read.text


def test_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, made_up())
    folder = tmp_path / "figures"
    result = run("verify", "--figures", str(folder))
    assert (result.exit_code, result.stderr) == (0, f"wrote {folder}\n")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"verify{theme}.{ending}" for theme in ("-dark", "") for ending in ("pdf", "png", "svg")
    ]
    assert "spectral" in (folder / "verify.svg").read_text(encoding="utf-8")
    (tmp_path / "file").touch()
    assert run_main(monkeypatch, "verify", "--figures", tmp_path / "file") == 2


def test_text_is_escaped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nasty = "<b>x</b> && <script>alert(1)</script> [bold]y[/bold] [/]"
    fields = dict.fromkeys(("name", "section", "text", "source", "counterexample"), nasty)
    verdict = made_up(**fields, holds=False, expected=False)
    answering(monkeypatch, verdict)
    page = tmp_path / "page.html"
    result = run("verify", "--html", str(page))
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    text = page.read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "<script" not in text
    read = Page(text)
    assert not {"b", "script"} & set(read.tags)
    assert nasty in read.text
    assert nasty in result.stdout.replace("\n", " ")  # nor does the terminal read it as markup


def test_quiet_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, made_up(), made_up(name="other", expected=False))
    result = run("verify", "--quiet", "--html", tmp_path / "page.html")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == "2 hold, 0 refuted. NOT as expected: other.\n"
    assert (tmp_path / "page.html").is_file()


def test_list_shows_every_statement_once() -> None:
    result = run("verify", "--list")
    assert result.exit_code == 0
    stated = json.loads(run("verify", "--list", "--json").stdout)["statements"]
    for line, one, statement in zip(result.stdout.splitlines(), stated, catalogue(), strict=True):
        assert line.split()[:2] == [one["name"], one["status"]] == [statement.name, statement.status]
        assert statement.text in line


def test_the_examples_of_the_help_name_real_statements() -> None:
    shown = run("verify", "--help").stdout
    assert "Exit code 0" in shown
    examples = re.findall(r"abbe verify((?: [a-z][\w-]*)+) --", shown)
    assert examples
    for example in examples:
        assert set(example.split()) <= set(NAMES)


def test_as_a_program() -> None:
    command = [sys.executable, "-W", "error", "-m", "abbe", "normalizers", "sparsemax"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "sparsemax" in done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b[" not in done.stdout
