"""Workers that share the parts of a folder: which of them makes a part, and when."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from inside import Alive, Board, Unit, Worker


def test_a_part_that_failed_here_is_left_to_others(tmp_path: Path) -> None:
    """Another worker lives and has not tried it; this one goes on, and tries again when the other is gone."""
    with Alive(tmp_path) as first, Alive(tmp_path) as second:
        made: list[str] = []
        units = [Unit(name, (tmp_path / name,)) for name in ("a", "b")]
        bad, good = Worker(Board(tmp_path), first, None), Worker(Board(tmp_path), second, None)

        def fail_first(unit: Unit) -> None:
            made.append(f"bad {unit.name}")
            if unit.name == "a":
                raise RuntimeError("no")
            unit.files[0].touch()

        def make(unit: Unit) -> None:
            made.append(f"good {unit.name}")
            unit.files[0].touch()

        thread = threading.Thread(target=lambda: bad.share(units, fail_first, None, needed=True))
        thread.start()
        while "bad b" not in made:
            time.sleep(0.01)
        time.sleep(0.6)  # longer than between two looks
        assert made == ["bad a", "bad b"]
        good.share(units, make, None, needed=True)
        thread.join()
        assert made == ["bad a", "bad b", "good a"]


def test_a_part_that_a_network_file_system_does_not_find_yet_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It remembers for a while that a file was not there; the list of the folder is right."""
    part, real = tmp_path / "windows" / "a", Path.is_file
    part.parent.mkdir()
    part.touch()
    monkeypatch.setattr(Path, "is_file", lambda path: path != part and real(path))
    with Alive(tmp_path) as alive:
        worker = Worker(Board(tmp_path), alive, None)
        for needed in (True, False):
            worker.share([Unit("windows/a", (part,))], lambda _: pytest.fail("is there"), None, needed)
        assert worker.made == 0


def test_a_part_waits_for_one_that_is_left_to_others(tmp_path: Path) -> None:
    """What it needs failed here: the part itself has not failed, and is free for others meanwhile."""
    with Alive(tmp_path) as first, Alive(tmp_path) as second:
        base, top = (Unit(name, (tmp_path / name,)) for name in ("base", "top"))
        board = Board(tmp_path)
        bad, tried = Worker(board, first, None), threading.Event()

        def fail(unit: Unit) -> None:
            tried.set()
            raise RuntimeError("no")

        def make(unit: Unit) -> None:
            bad.need([base], fail)
            unit.files[0].touch()

        thread = threading.Thread(target=lambda: bad.share([top], make, None, needed=True))
        thread.start()
        assert tried.wait(5)
        Worker(board, second, None).share([base], lambda unit: unit.files[0].touch(), None, needed=True)
        thread.join()
        assert bad.made == 1
        assert board.failed_names() == set()
