"""A run: saving and opening, headroom, its HTML, and what is said about a folder that holds something else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import abbe
from abbe.results import FORMAT, MANIFEST, SCHEMA, TABLE, Run, open_run


def rows(*given: dict[str, Any]) -> pl.DataFrame:
    empty: dict[str, Any] = dict.fromkeys(SCHEMA)
    return pl.DataFrame([empty | {"model": "m", "layer": 0, "head": 0} | row for row in given], schema=SCHEMA)


MADE = rows(
    {"length": 64, "measure": "entropy", "value": 3.0, "low": 2.9, "high": 3.1, "limit": 4.0},
    {"length": 64, "head": 1, "measure": "entropy", "value": 4.0, "limit": 4.0},
    {"length": 32, "measure": "entropy", "value": 1.0, "limit": 3.0},
    {"length": 64, "n": 1, "measure": "separability", "value": 1.0, "control": 0.5},
    {"length": 64, "n": 2, "measure": "separability", "value": 0.5, "control": 0.25},
    {"length": 64, "n": 4, "measure": "separability", "value": 0.25},
    {"length": 64, "layer": None, "head": None, "n": 4, "measure": "ks_statistic", "value": 0.1},
)


def made() -> Run:
    manifest = {
        "format": FORMAT,
        "finished": True,
        "model": {"name": "tiny", "about": "a model"},
        "text": {"name": "book.txt"},
        "settings": {"lengths": [32, 64]},
        "self_check": {"error": 1e-7},
        "skipped": [],
    }
    return Run(MADE, manifest)


def test_saved_and_opened_is_the_same(tmp_path: Path) -> None:
    folder = made().save(tmp_path / "a" / "run")
    again = abbe.open_run(folder)
    assert again.table.equals(MADE)
    assert again.manifest == made().manifest
    assert sorted(path.name for path in folder.iterdir()) == [TABLE, MANIFEST]


def test_headroom_is_one_minus_value_over_limit() -> None:
    headroom = made().headroom
    assert headroom["headroom"].to_list() == [0.25, 0.0, pytest.approx(2 / 3)]
    assert headroom.columns == [*SCHEMA, "headroom"]


def test_repr_is_short() -> None:
    assert repr(made()) == "Run(tiny on book.txt, lengths [32, 64], 7 rows)"


def test_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=r"holds no run: there is no manifest\.json"):
        open_run(tmp_path)


def test_run_that_is_not_finished(tmp_path: Path) -> None:
    (made().save(tmp_path) / TABLE).unlink()
    with pytest.raises(abbe.AbbeError, match=r"heads\.parquet"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000 + "]" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 99}', "format 99, this one has 4"),
        (json.dumps(made().manifest), r"manifest\.json has no checksum; delete it, and the same command resumes"),
    ],
    ids=["cut off", "nested", "a list", "another format", "no checksum"],
)
def test_damaged_manifest(tmp_path: Path, content: str, message: str) -> None:
    made().save(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(abbe.AbbeError, match=message):
        open_run(tmp_path)


def test_damaged_table(tmp_path: Path) -> None:
    made().save(tmp_path)
    (tmp_path / TABLE).write_bytes(b"PAR1 nothing")
    with pytest.raises(
        abbe.AbbeError, match=r"heads\.parquet is damaged: its checksum is wrong; run the same command again"
    ):
        open_run(tmp_path)


def test_every_flipped_bit_of_the_table_is_found(tmp_path: Path) -> None:
    """Most of them are read as other numbers by a reader of Parquet."""
    table = made().save(tmp_path) / TABLE
    whole = table.read_bytes()
    for place in random.Random(0).sample(range(8 * len(whole)), 60):
        table.write_bytes(flipped(whole, place))
        with pytest.raises(abbe.AbbeError, match="checksum is wrong") as caught:
            open_run(tmp_path)
        assert "\n" not in str(caught.value)
    table.write_bytes(whole)
    assert open_run(tmp_path).table.equals(MADE)


def test_a_flipped_bit_of_the_manifest_is_found_or_says_the_same(tmp_path: Path) -> None:
    manifest = made().save(tmp_path) / MANIFEST
    whole, noticed = manifest.read_bytes(), 0
    for place in range(8 * len(whole)):
        manifest.write_bytes(flipped(whole, place))
        try:
            again = open_run(tmp_path)
        except abbe.AbbeError:
            noticed += 1
        else:
            assert again.manifest == made().manifest  # white space
    assert noticed > 0.9 * 8 * len(whole)


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


@pytest.mark.parametrize("name", [MANIFEST, TABLE])
def test_a_folder_or_a_link_to_nothing_in_place_of_a_file(tmp_path: Path, name: str) -> None:
    path = made().save(tmp_path) / name
    path.unlink()
    path.mkdir()
    with pytest.raises(abbe.AbbeError, match=rf"{name} cannot be read: Is a directory"):
        open_run(tmp_path)
    path.rmdir()
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(abbe.AbbeError, match=rf"{name} cannot be read: it is a link to nothing"):
        open_run(tmp_path)


def test_table_with_other_columns(tmp_path: Path) -> None:
    Run(MADE.drop("control"), made().manifest).save(tmp_path)
    with pytest.raises(abbe.AbbeError, match="not have the columns of a run: model, layer"):
        open_run(tmp_path)
