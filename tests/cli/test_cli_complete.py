"""What the shell offers after Tab."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import run_python

import abbe
from abbe.cli import complete as _complete
from abbe.studies import FIGURES

SHELL = """
import os, sys
from abbe.cli import main
sys.argv = ["abbe"]
for line in os.environ.pop("LINES_TO_COMPLETE").split("|"):
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    try:
        main()
    except SystemExit:
        print("|")
print("loaded", "torch" in sys.modules, file=sys.stderr)
"""


def offered(*lines: str, **variables: str) -> list[list[str]]:
    """What bash would offer for the last word of each line, asked for as bash does; all in one process."""
    done = run_python(SHELL, _ABBE_COMPLETE="complete_bash", LINES_TO_COMPLETE="|".join(lines), **variables)
    assert "loaded False" in done.stderr
    assert "Traceback" not in done.stderr
    answers = [answer.split() for answer in done.stdout.split("|")]
    assert answers.pop() == []
    return answers


def test_names_are_those_of_the_modules() -> None:
    assert sorted(info.name for info in abbe.list_normalizers()) == _complete.normalizers("")
    assert FIGURES == _complete.FIGURES
    assert set(_complete.PULLABLE) == set(abbe.models.PULLABLE)


def test_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "more/inner", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mine" / "config.json").write_text("{}")
    for name in ("m.gguf", "m.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert _complete.models("m") == ["minilm", "m.gguf", "mine", "more/"]
    assert _complete.models("more/") == ["more/inner/"]
    assert _complete.models(f"{tmp_path}/mi") == [f"{tmp_path}/mine"]
    assert _complete.models("") == ["embedded", "smollm2", "minilm", "m.gguf", "mine", "more/"]
    assert _complete.models(".h") == [".hidden/"]
    assert _complete.models("nowhere/x") == []


def test_commands_options_models_and_values() -> None:
    values = {
        "abbe re": ["report", "reproduce"],
        "abbe report --f": ["--figures"],
        "abbe report emb": ["embedded"],
        "abbe report smol": ["smollm2"],
        "abbe pull mi": ["minilm"],
        "abbe diagnose --vectors ": ["value", "output", "hidden", "embedding"],
        "abbe lift --goal ": ["sparse", "loss", "retrieval"],
        "abbe report --device c": ["cpu", "cuda"],
        "abbe report --dtype b": ["bfloat16"],
        "abbe report --device-map bal": ["balanced", "balanced_low_0"],
        "abbe train temperature --task ": ["recall", "mqar", "maximum", "text"],
        "abbe train recall --task m": ["mqar"],
        "abbe train text --optimizer ": ["sgd", "adamw", "muon"],
        "abbe diagnose --with spar": ["sparsemax"],
        "abbe normalizers top": ["topk", "topp"],
        "abbe reproduce --figure 2": ["2a", "2b", "2c"],
        "abbe reproduce --figure 2a,2": ["2a,2b", "2a,2c"],
    }
    assert dict(zip(values, offered(*values), strict=True)) == values


def test_the_shell_gets_a_script() -> None:
    done = run_python(SHELL, _ABBE_COMPLETE="source_bash", LINES_TO_COMPLETE="abbe")
    assert "_ABBE_COMPLETE=complete_bash" in done.stdout
