"""Files of a run that appear whole or not at all, and are known to be unharmed."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import abbe
from abbe.runs.parts import Parts, claim_folder


def stored(folder: Path, content: dict[str, Any]) -> Path:
    Parts(folder, "r").keep_json("p", content)
    return folder / "p.json"


def refusal(folder: Path, run: str = "r", part: str = "p") -> str:
    """Why a part counts as missing."""
    parts = Parts(folder, run)
    assert parts.json(part) is None
    (why,) = parts.measured_again
    return why


def test_what_was_read_is_what_was_written(tmp_path: Path) -> None:
    stored(tmp_path, {"x": [0.1, -0.0, 1e-320, None], "é": {2: "b", 10: "a"}})
    content = Parts(tmp_path, "r").json("p")
    assert content == {"x": [0.1, 0.0, 1e-320, None], "é": {"2": "b", "10": "a"}}
    assert math.copysign(1, content["x"][1]) == -1
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_another_run_or_part(tmp_path: Path) -> None:
    shutil.copy(stored(tmp_path, {"x": 1}), tmp_path / "q.json")
    assert "p.json belongs to another run" in refusal(tmp_path, run="s")
    assert "q.json is a copy of p" in refusal(tmp_path, part="q")


@pytest.mark.parametrize("change", ["x", "run", "part", "files", "sha256"])
def test_what_was_changed_is_found(tmp_path: Path, change: str) -> None:
    path = stored(tmp_path, {"x": 1})
    content = json.loads(path.read_text())
    (content if change == "x" else content["checked"])[change] = 2
    path.write_text(json.dumps(content))
    assert "checksum is wrong" in refusal(tmp_path)


def test_numbers_of_thousands_of_digits_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"x": ' + "1" * 10_000 + "}")
    assert "not valid JSON" in refusal(tmp_path)


def claim(folder: Path, seed: int = 0) -> None:
    claim_folder(folder, "made up", {}, {"seed": seed})


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_what_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    claim(tmp_path)
    before = (tmp_path / "manifest.json").read_text()
    monkeypatch.setattr(step, full)
    with pytest.raises(abbe.AbbeError, match=r"cannot write .*manifest\.json: No space left on device"):
        claim(tmp_path, seed=1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"manifest.json": before}


def test_what_a_killed_process_leaves_is_removed_and_nothing_else(tmp_path: Path) -> None:
    claim(tmp_path)
    kept = {".film.mp4.part", "a.json", ".a.json.part", "manifest.json"}
    for name in (*kept - {"manifest.json"}, ".a.json.123-0123abcd.part"):
        (tmp_path / name).touch()
    claim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
