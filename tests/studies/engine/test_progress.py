"""What a long study says: a bar on a terminal, a plain line a minute elsewhere, nothing when asked for quiet."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from typing import Any

import pytest
import tiny_runs
from tiny_runs import OPTIONS, quick

from abbe.runs import watch as _progress
from abbe.runs import window as engine_window
from abbe.studies import watching

LINE = re.compile(r"abbe: \d+ s: \d+ of \d+ done \(windows of 16\)(, about \d+ s left)?")


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float, every: float) -> None:
    """Every window takes so long, and a minute is so short."""
    done = engine_window.WindowReader.done

    def later(*given: Any) -> Any:
        time.sleep(seconds)
        return done(*given)

    monkeypatch.setattr(engine_window.WindowReader, "done", later)
    monkeypatch.setattr(_progress, "EVERY", every)


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "abbe-progress"]


def diagnosed(progress: bool = True) -> None:
    tiny_runs.run(lengths=16, windows=4, progress=progress)


def test_a_line_a_minute_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow(monkeypatch, 0.15, 0.1)
    diagnosed()
    output = capsys.readouterr()
    assert output.out == ""
    lines = [line for line in output.err.splitlines() if line.startswith("abbe: ")]
    assert len(lines) >= 3
    later = [line for line in lines if "windows" in line]
    assert all(LINE.fullmatch(line) for line in later), lines
    assert "left" in later[0]
    assert "\x1b" not in output.err


def test_a_study_that_finishes_sooner_says_only_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosed()
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.partition(":")[0] for line in output.err.splitlines()] == [
        "tiny gpt2",
        "tiny gpt2",
        "4 windows, 64 tokens",
    ]


def test_quiet_says_nothing_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow(monkeypatch, 0.05, 0.01)
    with watching(False):
        assert not our_threads()
    diagnosed(progress=False)
    assert capsys.readouterr() == ("", "")


def test_the_thread_ends_with_the_study_also_after_an_error() -> None:
    def fail() -> None:
        with watching(True):
            assert our_threads()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not our_threads()


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Clock]:
    from rich.console import Console

    clock = Clock()
    watch = _progress._Lines(Console(stderr=True), clock)
    watch.close()
    return watch, clock


def test_what_a_line_says(lines: tuple[Any, Clock]) -> None:
    watch, clock = lines
    assert watch.line() == "abbe: 0 s: starting"
    watch.expect(40)
    clock.now = 60
    assert watch.line() == "abbe: 1 min: 0 of 40 done"
    for _ in range(10):
        clock.now += 12
        watch.step("windows of 256")
    watch.part = "figure 3"
    # Ten steps, of which the first took 72 seconds and the others 12.
    assert watch.line() == "abbe: 3 min: 10 of 40 done (figure 3, windows of 256), about 9 min left"
    watch.expect(2)
    watch.step("other normalizers")
    assert watch.line() == "abbe: 3 min: 1 of 2 done (figure 3, other normalizers)"
    clock.now += 7200
    watch.step("other normalizers")
    assert watch.line() == "abbe: 2 h 3 min: 2 of 2 done (figure 3, other normalizers)"


def test_what_was_done_before_says_nothing_about_the_rest(lines: tuple[Any, Clock]) -> None:
    watch, clock = lines
    watch.expect(100)
    for _ in range(90):
        watch.step("kept")
    clock.now = 30
    watch.step("measured")
    assert watch.line() == "abbe: 30 s: 91 of 100 done (measured), about 4 min left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 0.05, 0.01)
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with watching(True):
        assert not our_threads()
    diagnosed()
    assert "━" in screen.getvalue()
    assert "abbe: " not in screen.getvalue()


class Gone(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        if text.startswith("abbe: "):
            raise BrokenPipeError
        return super().write(text)


def test_a_study_goes_on_when_nobody_reads_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 0.05, 0.01)
    monkeypatch.setattr(sys, "stderr", Gone())
    diagnosed()


@pytest.mark.quick(2)
@pytest.mark.parametrize("study", OPTIONS)
def test_every_study_says_what_is_done(
    study: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "EVERY", 0.02)
    quick(study, tiny_runs.model(), tiny_runs.TEXT, progress=True)
    output = capsys.readouterr()
    assert output.out == ""
    assert re.search(r"^abbe: \d+ s: \d+ of \d+ done", output.err, re.MULTILINE)
