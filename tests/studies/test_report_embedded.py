"""The golden report: what the embedded model shows, with fixed seeds, so that nothing changes unseen.

After a change on purpose, write it anew: `python tests/studies/test_report_embedded.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import abbe

FILE = Path(__file__).parent / "golden_report.json"
# Other processors round sums in another order, which moves a few tokens across the edge of a ball, and ties apart.
RELATIVE, ABSOLUTE = 0.02, 0.005
SETTINGS: dict[str, Any] = {"lengths": [64, 256], "windows": 3, "queries": 16, "resamples": 200, "progress": False}


def facts() -> dict[str, Any]:
    """The parts of a report that a golden file can hold: what was found, without machine and time."""
    report = abbe.report("embedded", seed=0, **SETTINGS)
    content = report.as_json()
    shown = {
        "numbers": {number["name"]: [number[key] for key in ("value", "low", "high")] for number in content["numbers"]}
    }
    for part in ("verdicts", "advice"):
        shown[part] = {finding["topic"]: finding["numbers"] for finding in content[part]}
    shown["heads"] = [verdict["kind"] for verdict in content["heads"]]
    shown["growth"] = [row["decay"] for row in content["growth"]]
    shown["floors"] = [row["floor"] for row in content["floors"]]
    shown["told apart"] = [row["separable"] for row in content["alternatives"]]
    of_heads = report.table.filter(pl.col("head").is_not_null())
    for name in ("previous_token", "induction"):
        shown[name] = of_heads.filter(pl.col("measure") == name).sort("length", "layer", "head")["value"].to_list()
    return shown


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return facts()


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "part", ["numbers", "verdicts", "advice", "growth", "floors", "told apart", "previous_token", "induction"]
)
def test_numbers(measured: dict[str, Any], golden: dict[str, Any], part: str) -> None:
    for place, (given, wanted) in _pairs(measured[part], golden[part]).items():
        if isinstance(wanted, float):
            wanted = pytest.approx(wanted, rel=RELATIVE, abs=ABSOLUTE)
        assert given == wanted, place


def test_kinds_of_heads(measured: dict[str, Any], golden: dict[str, Any]) -> None:
    assert measured["heads"] == golden["heads"]


def _pairs(given: Any, wanted: Any, place: str = "") -> dict[str, tuple[Any, Any]]:
    """The numbers of two nested structures of one shape, by their place."""
    if isinstance(wanted, dict):
        assert given.keys() == wanted.keys(), place
        parts = [_pairs(given[key], wanted[key], f"{place}/{key}") for key in wanted]
    elif isinstance(wanted, list):
        assert len(given) == len(wanted), place
        parts = [_pairs(a, b, f"{place}/{i}") for i, (a, b) in enumerate(zip(given, wanted, strict=True))]
    else:
        return {place: (given, wanted)}
    return {key: pair for part in parts for key, pair in part.items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(facts(), indent=1) + "\n", encoding="utf-8")
