"""A run: saving and opening, headroom, its HTML, and what is said about a folder that holds something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import abbe
from abbe.results import FORMAT, MANIFEST, SCHEMA, TABLE, Run, open_run, summary


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


def made(name: str = "tiny", skipped: tuple[str, ...] = ()) -> Run:
    manifest = {
        "format": FORMAT,
        "finished": True,
        "model": {"name": name, "about": "a model"},
        "text": {"name": "book.txt"},
        "settings": {"lengths": [32, 64]},
        "self_check": {"error": 1e-7},
        "skipped": list(skipped),
    }
    return Run(MADE, manifest)


def test_saved_and_opened_is_the_same(tmp_path: Path) -> None:
    folder = made().save(tmp_path / "a" / "run")
    again = abbe.open_run(folder)
    assert again.heads.equals(MADE)
    assert again.manifest == made().manifest
    assert sorted(path.name for path in folder.iterdir()) == [TABLE, MANIFEST]


def test_headroom_is_one_minus_value_over_limit() -> None:
    found = made().headroom
    assert found["headroom"].to_list() == [0.25, 0.0, pytest.approx(2 / 3)]
    assert found.columns == [*SCHEMA, "headroom"]


def test_summary_is_the_mean_over_heads_at_the_largest_length() -> None:
    found = summary(MADE).to_dicts()
    assert [(row["measure"], row["n"], row["value"], row["heads"]) for row in found] == [
        ("entropy", None, 3.5, 2),
        ("separability", 2, 0.5, 1),
    ]


def test_repr_is_short() -> None:
    assert repr(made()) == "Run(tiny on book.txt, lengths [32, 64], 7 rows)"


def test_html_escapes_names_and_reasons() -> None:
    page = made("<script>alert(1)</script>", ("length 8: <b>no</b>",))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "length 8: &lt;b&gt;no&lt;/b&gt;" in page


def test_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=r"holds no run: there is no manifest\.json"):
        open_run(tmp_path)


def test_run_that_is_not_finished(tmp_path: Path) -> None:
    (made().save(tmp_path) / TABLE).unlink()
    with pytest.raises(abbe.AbbeError, match="not finished: start the same run again"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), ('{"format": 99}', "format 99, this version reads 1")],
)
def test_damaged_manifest(tmp_path: Path, content: str, message: str) -> None:
    made().save(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(abbe.AbbeError, match=message):
        open_run(tmp_path)


def test_damaged_table(tmp_path: Path) -> None:
    made().save(tmp_path)
    (tmp_path / TABLE).write_bytes(b"PAR1 nothing")
    with pytest.raises(abbe.AbbeError, match="cannot be read"):
        open_run(tmp_path)


def test_table_with_other_columns(tmp_path: Path) -> None:
    made().save(tmp_path)
    MADE.drop("control").write_parquet(tmp_path / TABLE)
    with pytest.raises(abbe.AbbeError, match="other columns than a run: model, layer"):
        open_run(tmp_path)
