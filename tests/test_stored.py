"""Files that appear whole or not at all, and are known to be unharmed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from inside import stored

import abbe


def test_what_was_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    stored.write_json(path, {"x": [0.1, -0.0, 1e-320, None], "é": {2: "b", 10: "a"}}, run="r", part="p")
    content = stored.checked(path, stored.read_json(path), "r", "p")
    assert content == {"x": [0.1, 0.0, 1e-320, None], "é": {"2": "b", "10": "a"}}
    assert math.copysign(1, content["x"][1]) == -1
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("run", "part", "message"), [("q", "p", r"a\.json belongs to another run"), ("r", "q", r"a\.json is a copy of p")]
)
def test_another_run_or_part(tmp_path: Path, run: str, part: str, message: str) -> None:
    stored.write_json(tmp_path / "a.json", {"x": 1}, run="r", part="p")
    with pytest.raises(abbe.AbbeError, match=message):
        stored.checked(tmp_path / "a.json", stored.read_json(tmp_path / "a.json"), run, part)


@pytest.mark.parametrize("change", ["x", "run", "part", "files", "sha256"])
def test_what_was_changed_is_found(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.json"
    stored.write_whole(tmp_path / "table.csv", "n\n1\n")
    stored.write_json(path, {"x": 1}, run="r", part="p", files=["table.csv"])
    content = json.loads(path.read_text())
    if change == "x":
        content["x"] = 2
    else:
        content[stored.CHECKED][change] = {} if change == "files" else "s"
    with pytest.raises(abbe.AbbeError, match="checksum is wrong"):
        stored.checked(path, content, "s" if change == "run" else "r", "s" if change == "part" else "p")


def test_numbers_of_thousands_of_digits_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": ' + "1" * 10_000 + "}")
    with pytest.raises(abbe.AbbeError, match="not valid JSON"):
        stored.read_json(tmp_path / "a.json")


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    stored.write_whole(path, "before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(stored.CannotWrite, match=r"cannot write .*a\.txt: No space left on device"):
            stored.write_whole(path, "after")
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(stored.CannotWrite, match="Is a directory"):
        stored.write_whole(tmp_path, "after")


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [(".a.json.123-0123abcd.part", True), (".film.mp4.part", False), ("a.json", False), (".a.json.part", False)],
)
def test_what_a_killed_process_leaves_is_known_by_its_name(name: str, is_ours: bool) -> None:
    assert stored.is_unfinished(Path(name)) == is_ours
