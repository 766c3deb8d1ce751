"""Run the commands of a document by the real command line: up to the first pass of a model, or with little to do."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import transformers
import typer
from cli_runs import run
from doc_blocks import ROOT
from stand_ins import save_swap, save_training

from abbe import cli, studies

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WITHOUT_A_MODEL = ("pull", "verify", "normalizers", "doctor", "watch", "cost")  # they run to the end
# Behind a command of a document, where the last value of an option counts: as little as it can measure.
_HEADS = ("--lengths", "16", "--windows", "2", "--queries", "4", "--sizes", "1,2")
_TRAIN = ("--steps", "10", "--seeds", "2", "--rates", "0.01", "--workers", "1")
# Such as may be repeated stand behind a command that has none.
_LISTS = {
    **{key: {"--with": "sparsemax"} for key in ("compare", "lift")},
    **{key: {"--with": "softmax", "--optimizer": "adamw"} for key in ("temperature", "length", "recall", "text")},
}
SMALL = {
    "report": _HEADS,
    "diagnose": _HEADS,
    "diff": _HEADS,
    "reproduce": ("--windows", "2", "--queries", "4", "--figure", "3"),
    "capacity": ("--lengths", "16", "--windows", "2", "--tau", "0.05", "--targets", "all"),
    "compare": ("--length", "40", "--windows", "2", "--needle-lengths", "31,40", "--prompts", "1"),
    "calibrate": ("--length", "16", "--windows", "2", "--held-out", "2", "--steps", "1", "--queries", "4"),
    "lift": ("--length", "16", "--windows", "2", "--steps", "2", "--prompts", "1"),
    "eval": ("--limit", "6"),
    "export": (),
    "train temperature": (*_TRAIN, "--temperatures", "1,0.1", "--no-qk-norm"),
    "train length": (*_TRAIN, "--lengths", "16,64"),
    "train recall": _TRAIN,
    "train text": _TRAIN,
}


class Accepted(BaseException):
    """Everything was read and checked: the work would begin now."""


def stop_before_the_work(patch: pytest.MonkeyPatch) -> None:
    """The first pass of any network, the first run of the lab and the search for all bounds end with `Accepted`.

    No browser opens.
    """

    def stop(*_args: object, **_options: object) -> NoReturn:
        raise Accepted

    def verify(names: Any = (), *args: Any) -> Any:
        return real(names, *args) if names else stop()

    real = studies.verify
    patch.setattr(transformers.PreTrainedModel, "__call__", stop, raising=False)
    patch.setattr(studies, "verify", verify)
    patch.setattr("abbe.lab.experiments.train", stop)
    patch.setattr(webbrowser, "open", lambda _page: True)  # what runs to the end must not open one


def run_command(line: str) -> None:
    """One line of a block of commands; anything that a reader could not type is an error."""
    words = shlex.split(line, comments=True)
    if words[0] == ".venv/bin/abbe":
        words[0] = "abbe"
    if words[0] == "abbe":
        printed = run_abbe(words[1:])
        for word in re.findall(r"# ([A-Z]+)\b", line):  # as in "# REFUTED, ..."
            assert word in printed, f"{line!r} prints no {word}: {printed}"
    elif words[0] == "make":
        check_make(words[1:])
    elif words[0] == "head":
        subprocess.run(["bash", "-ec", line], check=True)
    else:
        raise AssertionError(f"{line!r} is no command that is known here: is it output? Then fence it as text")


@contextmanager
def tidy(words: list[str]) -> Iterator[None]:
    """What a command reads, swaps and runs, is made first; what it writes is removed again."""
    before = set(Path().iterdir())
    for file in (word.removeprefix("file:") for word in words if word.startswith("file:")):
        save_swap(Path(file), "entmax:alpha=1.5")
    if words[0] == "watch":
        save_training(Path(words[1]))
    try:
        yield
    finally:
        for made in set(Path().iterdir()) - before:
            shutil.rmtree(made) if made.is_dir() else made.unlink()


def run_abbe(words: list[str]) -> str:
    """What it prints, if it runs without a model."""
    try:
        with tidy(words):
            result = run(*words)
    except Accepted:
        return ""
    message = f"abbe {shlex.join(words)}: {result.exception or result.output}"
    assert result.exit_code == 0, message
    assert words[0] in WITHOUT_A_MODEL, f"ended before it ran a model: {message}"
    return result.output


def run_small(line: str) -> None:
    """A command that runs a model, to its end: it leaves its page, or the folder that it was asked for."""
    words = shlex.split(line, comments=True)[1:]
    name = " ".join(words[:2]) if words[0] == "train" else words[0]
    lists = [one for pair in _LISTS.get(name.split()[-1], {}).items() if pair[0] not in words for one in pair]
    small = ["--finetune", "1"] if "--finetune" in words else []
    if name == "capacity":
        small = ["--layer-lengths", "16", "--layer-windows", "2"] if "--layer-lengths" in words else ["--no-layers"]
    with tidy(words):
        result = run(*words, *SMALL[name], *lists, *small, "--quiet")
        assert result.exit_code == 0, f"abbe {shlex.join(words)}: {result.exception or result.output}"
        if "--json" in words:
            json.loads(result.stdout)
        else:
            assert Path(result.stdout.splitlines()[-1]).exists()


def check_make(words: list[str]) -> None:
    """The targets exist, and ARGS of the benchmarks name parts that there are."""
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    targets = [word for word in words if "=" not in word and not word.startswith("-")]
    unknown = set(targets) - set(phony[1].split())
    assert not unknown, f"the Makefile has no {unknown}"
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    if targets == ["bench"] and "ARGS" in settings:
        option, parts = settings["ARGS"].split()
        assert option == "--part"
        assert set(parts.split(",")) <= set(bench_parts())


def bench_parts() -> tuple[str, ...]:
    return tuple(runpy.run_path(str(ROOT / "benchmarks" / "bench.py"), run_name="bench")["PARTS"])


def check_span(span: str) -> bool:
    """A command within a sentence: it may leave out what it does not speak of. False if it is no command."""
    if span.removeprefix("time ").partition(" ")[0] not in ("make", "abbe", "python", "pip"):
        return False
    words = shlex.split(span.removeprefix("time "))
    if words == ["abbe"]:  # the package, or the model type of its folders
        return False
    if words[0] == "make":
        check_make(words[1:])
    elif words[0] == "abbe":
        check_options(words[1:])
    elif words[:2] == ["python", "-c"]:
        subprocess.run([sys.executable, *words[1:]], check=True, capture_output=True)
    elif words[0] == "python":
        script = (ROOT / words[1]).read_text(encoding="utf-8")
        assert all(f'"{word}"' in script for word in words[2:] if word.startswith("--")), span
    elif "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file(), span  # pip install -c FILE
    return True


def check_options(words: list[str]) -> None:
    """Command and options exist and take such values."""
    top: Any = typer.main.get_command(cli.app)
    command = top
    if not words[0].startswith("-"):
        assert words[0] in top.commands, f"there is no command abbe {words[0]}"
        command, words = top.commands[words[0]], words[1:]
        if words and words[0] in getattr(command, "commands", ()):
            command, words = command.commands[words[0]], words[1:]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    options = {word for word in words if word.startswith("--")}
    assert options <= known, f"abbe {command.name} has no {options - known}"
    if command is top or "--help" in words or (not words and hasattr(command, "commands")):
        return
    try:
        command.make_context(command.name, words)
    except Exception as error:  # typer's own copy of click has no public names
        if type(error).__name__ != "MissingParameter" and "requires an argument" not in str(error):
            raise AssertionError(f"abbe {command.name} {shlex.join(words)}: {error}") from error
