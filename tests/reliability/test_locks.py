"""One process at a time in a folder; here it is held while a result is saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_runs
from cli_runs import StandIn
from threads import refused_in_another_thread

import abbe


class Slow(StandIn):
    """Something happens while it is saved."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__("slow", {}, manifest={})
        self.meanwhile = meanwhile

    def _files(self) -> dict[str, bytes | str]:
        self.meanwhile()
        return {}


def refusal(folder: Path) -> str:
    """Why a result cannot be saved by another thread; empty if it can."""
    return refused_in_another_thread(lambda: Slow().save(folder))


def refusal_while_held(folder: Path, held: Path, meanwhile: Callable[[], object] = lambda: None) -> str:
    words: list[str] = []
    Slow(lambda: (meanwhile(), words.append(refusal(folder)))).save(held)
    return words[0]


def test_the_second_is_refused_and_the_first_may_take_it_again(tmp_path: Path) -> None:
    again = lambda: (Slow().save(tmp_path), Slow().save(str(tmp_path)))  # noqa: E731
    words = refusal_while_held(tmp_path, tmp_path, again)
    assert f"{tmp_path} is in use by process {os.getpid()} on " in words
    assert refusal(tmp_path) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_by_another_name_it_is_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    again = lambda: Slow().save(tmp_path / "link")  # noqa: E731
    assert "is in use" in refusal_while_held(tmp_path / "link", tmp_path / "real", again)


@pytest.mark.parametrize("content", ["", '{"process": 1, "host": "here", "since": "then"}', "[" * 100])
def test_the_file_of_a_killed_process_holds_nobody_up(tmp_path: Path, content: str) -> None:
    (tmp_path / ".lock").write_text(content)
    assert f"process {os.getpid()} on" in refusal_while_held(tmp_path, tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_a_holder_that_says_nothing(tmp_path: Path) -> None:
    spoil = lambda: (tmp_path / ".lock.json").write_text("nothing")  # noqa: E731
    assert "is in use by another process: wait" in refusal_while_held(tmp_path, tmp_path, spoil)


def test_the_lock_of_one_shard_does_not_hold_up_another(tmp_path: Path) -> None:
    refused: dict[str, str] = {}

    def diagnose(share: str, meanwhile: Callable[..., object] = lambda *_: None) -> None:
        model = tiny_runs.model()
        model.network.base_model.register_forward_pre_hook(meanwhile)
        with abbe.shard(share):
            abbe.diagnose(model, tiny_runs.TEXT, folder=tmp_path, lengths=[16], **tiny_runs.QUICK)

    def others(*_: object) -> None:
        if not refused:
            refused.update(dict.fromkeys(("1/2", "2/2"), ""))
            for share in refused:
                refused[share] = refused_in_another_thread(lambda: diagnose(share))  # noqa: B023

    diagnose("1/2", others)
    assert "is in use" in refused["1/2"]
    assert refused["2/2"] == ""
    assert not [path for path in tmp_path.iterdir() if "lock" in path.name]


def test_a_folder_that_stays_empty_is_taken_away(tmp_path: Path) -> None:
    def fail() -> None:
        raise abbe.AbbeError("a mistake")

    (tmp_path / "mine").mkdir()
    for name in ("a/b", "mine"):
        with pytest.raises(abbe.AbbeError, match="a mistake"):
            Slow(fail).save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    for place, message in (("letter", "is a file: name a folder"), ("letter/run", "cannot make the run folder")):
        with pytest.raises(abbe.AbbeError, match=message):
            Slow().save(tmp_path / place)
