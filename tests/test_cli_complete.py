"""What the shell offers after Tab."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import run_python
from inside import OPTIMIZERS, TASKS
from inside import cli_complete as _complete
from inside import cli_names as _names
from inside import engine_settings as _settings
from inside import load_module as _load

import abbe
from abbe.bounds import catalogue
from abbe.studies import FIGURES

SHELL = """
import sys
from abbe.cli import main
sys.argv = ["abbe"]
try:
    main()
finally:
    print("loaded", "torch" in sys.modules, file=sys.stderr)
"""


def offered(line: str, **variables: str) -> list[str]:
    """What bash would offer for the last word of the line, asked for as bash does."""
    words = line.split(" ")
    asked = {"_ABBE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = run_python(SHELL, **asked, **variables)
    assert "loaded False" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.split()


def test_names_are_those_of_the_modules() -> None:
    assert sorted(info.name for info in abbe.list_normalizers()) == _names.normalizer_names()
    assert [statement.name for statement in catalogue()] == list(_names.STATEMENTS)
    assert FIGURES == _names.FIGURES
    assert set(_settings.get_args(_settings.Vectors)) == set(_names.VECTORS)
    assert (tuple(TASKS), OPTIMIZERS) == (_names.TASKS, _names.OPTIMIZERS)


def test_commands_and_options() -> None:
    assert offered("abbe re") == ["report", "reproduce"]
    assert offered("abbe report --f") == ["--figures"]


def test_models_that_are_there(tmp_path: Path) -> None:
    pulled = tmp_path / "cache" / "models" / "smollm2"
    pulled.mkdir(parents=True)
    (pulled / "ABOUT.json").write_text("{}")
    (tmp_path / "minilm-unfinished").mkdir()
    cache = {"ABBE_CACHE": str(tmp_path / "cache")}
    assert offered("abbe report e", **cache)[0] == "embedded"
    assert "smollm2" in offered("abbe report sm", **cache)
    assert "minilm" not in offered("abbe report mi", **cache)
    assert offered("abbe pull mi", **cache) == ["minilm"]


def test_folders_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "more/inner", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mine" / "config.json").write_text("{}")
    for name in ("m.gguf", "m.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert _complete.models("m") == ["m.gguf", "mine", "more/"]
    assert _complete.models("more/") == ["more/inner/"]
    assert _complete.models(f"{tmp_path}/mi") == [f"{tmp_path}/mine"]
    assert _complete.models("") == ["embedded", "m.gguf", "mine", "more/"]
    assert _complete.models(".h") == [".hidden/"]
    assert _complete.models("nowhere/x") == []


def test_a_completed_name_can_be_loaded() -> None:
    assert {"embedded", *_complete._pull_cache().PULLABLE} == set(_load.NAMES)


def test_values_of_options() -> None:
    assert offered("abbe diagnose --vectors o") == ["output"]
    assert offered("abbe train temperature --task m") == ["mqar", "maximum"]
    assert offered("abbe train recall --task m") == ["mqar"]
    assert offered("abbe train text --optimizer a") == ["adamw"]
    assert offered("abbe diagnose --with spar") == ["sparsemax"]
    assert offered("abbe normalizers top") == ["topk", "topp"]
    assert offered("abbe verify spectral-") == ["spectral-paper", "spectral-row-upper", "spectral-row-lower"]
    assert offered("abbe reproduce --figure 2") == ["2a", "2b", "2c"]
    assert offered("abbe reproduce --figure 2a,2") == ["2a,2b", "2a,2c"]


def test_the_shell_gets_a_script() -> None:
    done = run_python(SHELL, _ABBE_COMPLETE="source_bash")
    assert "_ABBE_COMPLETE=complete_bash" in done.stdout
