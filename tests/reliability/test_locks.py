"""One process at a time in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from inside import locks
from threads import refused_in_another_thread

import abbe


def held_by_another_thread(folder: Path) -> str:
    return refused_in_another_thread(lambda: locks.held(folder))


def test_the_second_is_refused_and_the_first_may_take_it_again(tmp_path: Path) -> None:
    with locks.held(tmp_path):
        with locks.held(tmp_path), locks.held(str(tmp_path)):
            pass
        assert f"{tmp_path} is in use by process {os.getpid()} on " in held_by_another_thread(tmp_path)
    assert held_by_another_thread(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_by_another_name_it_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with locks.held(tmp_path / "real"):
        assert "is in use" in held_by_another_thread(tmp_path / "link")
        with locks.held(tmp_path / "link"):
            pass


@pytest.mark.parametrize("content", ["", '{"process": 1, "host": "here", "since": "then"}', "[" * 100])
def test_the_file_of_a_killed_process_holds_nobody_up(tmp_path: Path, content: str) -> None:
    (tmp_path / locks.LOCK).write_text(content)
    with locks.held(tmp_path):
        assert f"process {os.getpid()} on" in held_by_another_thread(tmp_path)
    assert not (tmp_path / locks.LOCK).exists()


def test_a_holder_that_says_nothing(tmp_path: Path) -> None:
    with locks.held(tmp_path):
        (tmp_path / locks.HOLDER).write_text("nothing")
        assert "is in use by another process: wait" in held_by_another_thread(tmp_path)


def test_the_lock_of_one_shard_does_not_hold_up_another(tmp_path: Path) -> None:
    with locks.held(tmp_path, ".shard-1-of-2.lock"):
        assert refused_in_another_thread(lambda: locks.held(tmp_path, ".shard-2-of-2.lock")) == ""
        assert "is in use" in refused_in_another_thread(lambda: locks.held(tmp_path, ".shard-1-of-2.lock"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_stays_empty_is_taken_away(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        with locks.held(folder):
            raise abbe.AbbeError("a mistake")

    with pytest.raises(abbe.AbbeError, match="a mistake"):
        fail(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(abbe.AbbeError, match="a mistake"):
        fail(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    for place, message in (("letter", "is a file: name a folder"), ("letter/run", "cannot make the run folder")):
        with pytest.raises(abbe.AbbeError, match=message), locks.held(tmp_path / place):
            pass
