"""What all commands share: a light start, help with examples, exit codes, and no traceback unless asked for."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import typer
from cli_runs import COMMANDS, command_of, run, run_main, run_python

from abbe import AbbeError, cli, models, normalizers, results, studies
from abbe.runs import study as running

HEAVY = ("torch", "transformers", "tokenizers", "polars", "altair", "numba", "numpy", "jinja2", "safetensors")
# The function that a command rests on, and arguments that lead there.
BASE = {
    "report": (studies, "report", []),
    "reproduce": (studies, "reproduce", []),
    "diagnose": (studies, "diagnose", []),
    "capacity": (studies, "capacity", []),
    "compare": (studies, "compare", []),
    "calibrate": (studies, "calibrate", ["--with", "sparsemax"]),
    "merge": (running, "merge", ["."]),
    "lift": (studies, "lift", []),
    "diff": (studies, "diff", []),
    "eval": (studies, "evaluate", ["--plan", "sparsemax", "--tasks", "tasks"]),
    "export": (models, "export", ["embedded", "--plan", "sparsemax", "--out", "new"]),
    "watch": (results, "read_manifest", ["."]),
    **{f"train {name}": (studies, f"train_{name}", []) for name in ("temperature", "length", "recall", "text")},
    "verify": (studies, "verify", []),
    "normalizers": (normalizers, "list_normalizers", []),
    "pull": (models, "pull", ["minilm"]),
    "cost": (studies, "cost", []),
    "doctor": (studies, "doctor", []),
}
ON = dict.fromkeys(BASE, "finished work is kept: run the same command again to resume")
ON |= dict.fromkeys(("export", "pull"), "nothing was left behind, the same command starts again")
ON |= dict.fromkeys(
    ("watch", "verify", "normalizers", "cost", "doctor"), "nothing was kept, the same command starts again"
)


def failing(monkeypatch: pytest.MonkeyPatch, command: str, error: BaseException) -> list[str]:
    """The command fails with that error; its arguments."""

    def fail(*_args: object, **_options: object) -> None:
        raise error

    module, name, arguments = BASE[command]
    monkeypatch.setattr(module, name, fail, raising=False)
    return [*command.split(), *arguments]


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([*command.split(), "--help"] for command in COMMANDS)]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from abbe.cli import main
sys.argv = ["abbe", *{arguments!r}]
try:
    main()
except SystemExit as stop:
    assert stop.code == 0
print(sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r})))
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_table_above_names_every_command() -> None:
    top = {command.split()[0] for command in COMMANDS}
    assert set(BASE) == set(COMMANDS)
    assert top == set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    shown = run("--help").stdout
    places = {command: shown.index(f"│ {command} ") for command in top}
    listed, more = sorted(top, key=lambda command: places[command]), shown.index("─ More ─")
    assert shown.index("─ Commands ─") < places["report"]
    assert {command for command in top if places[command] > more} == {
        "diagnose", "calibrate", "cost", "merge", "train",
    }  # fmt: skip
    assert listed[:5] == ["report", "reproduce", "capacity", "compare", "diff"]


@pytest.mark.quick(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_the_common_options(command: str) -> None:
    entry = command_of(command)
    known = {name for parameter in entry.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {"--json", "--quiet", "--debug"} <= known
    shown = run(*command.split(), "--help").stdout
    examples = [line.strip() for line in shown.partition("Examples:")[2].splitlines() if line.strip()]
    assert len(examples) >= 2
    assert max(map(len, examples)) <= 78  # each in one line of 80 columns, to be pasted
    for example in examples:
        words, depth = shlex.split(example), 1 + len(command.split())
        assert words[:depth] == ["abbe", *command.split()]
        rest = words[depth:]
        assert {word for word in rest if word.startswith("-")} <= known
    assert "[bold]" not in shown
    for parameter in entry.params:
        assert parameter.help or parameter.name == "help"


@pytest.mark.parametrize("command", COMMANDS)
def test_stopped(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = failing(monkeypatch, command, KeyboardInterrupt())
    assert run_main(monkeypatch, *arguments) == 130
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"abbe: stopped; {ON[command]}\n"


SECOND = {
    "which never comes": "",
    "while the first is cleaned up": "stop = cleaning",
    "while its line is written": "_main._say_stopped = with_a_signal(_main._say_stopped)",
    "while Python shuts down": "import atexit; atexit.register(interrupt)",
    "when the first was swallowed": "_main._PATIENCE, stop = 0, swallowing",
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("moment", SECOND)
def test_an_interrupt_and_a_second_one_end_the_same_way(moment: str) -> None:
    code = f"""
import os, signal, sys, time
from abbe import studies
from abbe.cli import _main, main
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0)  # Python calls its handlers before this returns
def stop(*_args):
    interrupt()
    time.sleep(60)
def cleaning(*_args):
    try:
        interrupt()
    finally:
        interrupt()
def swallowing(*_args):
    try:
        interrupt()
    except KeyboardInterrupt:
        interrupt()
def with_a_signal(function):
    return lambda: (interrupt(), function())
{SECOND[moment]}
studies.verify = stop
sys.argv = ["abbe", "verify"]
main()
"""
    done = run_python(code)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "abbe: stopped; nothing was kept, the same command starts again"


def test_two_real_interrupts() -> None:
    """From outside, as fast as they come: however many, and whenever they arrive once the program runs."""
    code = """
import sys, time
from abbe import studies
from abbe.cli import main
def work(*_args):
    print("ready", flush=True)
    time.sleep(60)
studies.verify = work
sys.argv = ["abbe", "verify"]
main()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while process.poll() is None:  # the last ones meet Python's own shutdown
            process.send_signal(signal.SIGINT)
            time.sleep(1e-3)
        assert process.returncode == 130
        assert process.communicate()[1].count(b"\n") == 1


@pytest.mark.quick(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_one_line_and_with_debug_a_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = failing(monkeypatch, command, AbbeError("the lens is dusty: wipe it"))
    assert run_main(monkeypatch, name, *rest) == 2
    assert capsys.readouterr().err == "abbe: the lens is dusty: wipe it\n"
    for arguments in (["--debug", name, *rest], [name, *rest, "--debug"]):
        assert run_main(monkeypatch, *arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("Traceback")
        assert error.endswith("AbbeError: the lens is dusty: wipe it\n")
    assert run_main(monkeypatch, name, *rest) == 2  # debug does not stay on
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_defect_is_one_line_and_exit_code_1(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = failing(monkeypatch, command, RuntimeError("matrices do not fit\nand much more"))
    assert run_main(monkeypatch, *arguments) == 1
    error = capsys.readouterr().err
    line = "abbe: unexpected error, RuntimeError: matrices do not fit; run again with --debug to see where\n"
    assert error == line
    assert run_main(monkeypatch, *arguments, "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device", "run/x"), 2, "No space left on device: run/x"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (OSError("odd"), 2, "odd"),
        (ModuleNotFoundError("No module named 'polars'"), 1, "this installation is not complete (No module named"),
        (MemoryError(), 1, "unexpected error, MemoryError: MemoryError; run again with --debug"),
    ],
)
def test_other_errors(
    error: Exception, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *failing(monkeypatch, "verify", error)) == code
    message = capsys.readouterr().err
    assert message.startswith(f"abbe: {line}")
    assert message.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["normalizers"], ["normalizers", "--json"], ["verify", "--list"]])
def test_a_reader_that_went_away_is_no_error(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "abbe", *arguments], stdout=write, stderr=subprocess.PIPE, text=True, timeout=300
        )
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # not 1, which says that a verdict failed
