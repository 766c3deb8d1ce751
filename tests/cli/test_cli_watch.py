"""`abbe watch`: what it writes and prints, what it refuses, and how it follows a run."""

from __future__ import annotations

import json
import time
import webbrowser
from pathlib import Path

import made_up_watch as made
import pytest
from cli_runs import run, run_main

from abbe.training import STEPS, StepsFile, Training, encoded_step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.training().save(tmp_path / "run")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """One line, exit code 2, nothing on standard output."""
    assert run_main(monkeypatch, "watch", *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("abbe: ")
    assert said.err.count("\n") == 1
    return said.err


def test_the_page_is_written_into_the_folder(folder: Path) -> None:
    result = run("watch", folder)
    assert result.exit_code == 0
    assert "3 alerts: entropy collapse in layer 1, head 2 at step 350" in result.stdout
    assert result.stdout.endswith(f"page: {folder / 'watch.html'}\n")
    page = (folder / "watch.html").read_text()
    assert "3 alerts" in page
    assert 'http-equiv="refresh"' not in page


def test_quiet_out_and_figures(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abbe.views.figures", lambda _training, where: where.mkdir())
    result = run("watch", folder, "--quiet", "--out", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert (result.stdout, result.stderr) == (f"{tmp_path / 'page.html'}\n", "")
    assert (tmp_path / "figures").is_dir()
    assert not (folder / "watch.html").exists()


def test_json_is_one_object(folder: Path) -> None:
    result = run("watch", folder, "--json")
    content = json.loads(result.stdout)
    assert content["last_step"] == 1000
    assert content["steps_read"] == 21
    assert [alert["step"] for alert in content["alerts"]] == [350, 400, 600]
    assert {value["measure"] for value in content["last_values"]} == set(made.MEASURES)
    assert content["manifest"]["model"]["name"] == "tiny-gpt2"
    assert result.stderr == f"page: {folder / 'watch.html'}\n"


def test_open_shows_the_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or True)
    run("watch", folder, "--open")
    assert shown == [(folder / "watch.html").resolve().as_uri()]


def test_what_is_no_run_is_refused_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no folder" in refused(monkeypatch, capsys, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "holds no run" in refused(monkeypatch, capsys, tmp_path / "empty")
    none = Training([], made.MANIFEST).save(tmp_path / "none")
    assert "there are no steps in" in refused(monkeypatch, capsys, none)
    other = Training([], made.MANIFEST | {"study": "capacity"}).save(tmp_path / "other")
    assert "is a folder of `abbe capacity`" in refused(monkeypatch, capsys, other)
    (other / STEPS).unlink()
    assert "is a folder of `abbe capacity`" in refused(monkeypatch, capsys, other, "--follow")
    assert "--follow" in refused(monkeypatch, capsys, folder, "--follow", "--json")
    assert not (folder / "watch.html").exists()


def test_follow_waits_picks_up_new_steps_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What happens while it sleeps: the run begins, reads two more steps, half a line is written, Ctrl-C."""
    folder, pages = tmp_path / "run", []
    page = folder / "watch.html"

    def append(step: int) -> None:
        with (folder / STEPS).open("ab") as file:
            file.write(encoded_step(made.record(step, alerts=made.ALERTS)).encode())

    def begin() -> None:
        assert not page.exists()
        made.training((1, 50)).save(folder)

    def go_on() -> None:
        append(350)
        append(400)

    def half() -> None:
        with (folder / STEPS).open("ab") as file:
            file.write(b'{"crc32":12')

    def stop() -> None:
        raise KeyboardInterrupt

    events = iter([begin, go_on, lambda: None, half, stop])

    def sleep(seconds: float) -> None:
        assert seconds >= 3
        pages.append(page.read_text() if page.exists() else "")
        next(events)()

    read, readers = StepsFile.read, set()
    monkeypatch.setattr(StepsFile, "read", lambda steps: readers.add(steps) or read(steps))
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr("sys.argv", ["abbe", "watch", str(folder), "--follow"])
    result = run("watch", folder, "--follow")
    assert result.exit_code == 0
    assert len(readers) == 1  # which decodes every line once
    waiting, first, second, third, _ = pages
    assert waiting == ""
    assert "no alert in 50 steps" in first
    assert 'http-equiv="refresh"' in first
    assert "2 alerts" in second
    assert third == second  # nothing new, nothing written
    last = page.read_text()
    assert "2 alerts" in last
    assert 'http-equiv="refresh"' not in last
    assert (
        "step 350: entropy collapse in layer 1, head 2 (entropy over its ceiling 0.031, threshold 0.05)"
        in result.stderr
    )
    assert result.stderr.count("step 400: logit above 100 in layer 0, head 1") == 1
    assert result.stdout.endswith(f"page: {page}\n")


def test_follow_that_is_stopped_before_the_first_step_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", stop)
    result = run("watch", tmp_path / "absent", "--follow")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"following {tmp_path / 'absent'}: press Ctrl-C to stop\n"
