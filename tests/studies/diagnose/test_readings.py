"""Critical N under each reading of "expected" and of the test: planted distances, and what is said about them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import polars as pl
import pytest
import tiny_runs
import torch
from chart_parts import printed
from torch import Tensor

import abbe
from abbe.measures import Reading, ks_test
from abbe.runs.tables import DEFAULT, EXPECTED, LEVELS, READINGS, TESTS, QueryDistances, over_units, units_key
from abbe.studies import Claim, Figure, Reproduction

GRID, LENGTH, HEADS = (1, 2, 4, 8, 16), 32, 12
POSITIONS = torch.arange(2, LENGTH, 3)


def planted(true: Tensor, random: Tensor, formula: Tensor) -> dict[str, Tensor]:
    """The tests of two layers with these distances (head, query, N), each fed in two blocks of queries."""
    distances = QueryDistances()
    seen = (POSITIONS + 1)[None, :, None] > torch.tensor(GRID)
    defined = seen.expand(HEADS // 2, -1, -1)
    for layer in (slice(0, HEADS // 2), slice(HEADS // 2, HEADS)):
        for block in (slice(0, 4), slice(4, None)):
            parts = [x[layer, block] for x in (true, random, formula)]
            here = defined[:, block]
            distances.add(Reading(parts[0], here, control=parts[1]), Reading(parts[2], here))
        distances.end_layer(POSITIONS)
    return distances.tests(LENGTH, GRID)


def drawn(seed: int, shift: float = 0.0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(HEADS, len(POSITIONS), len(GRID), generator=made) + shift


def test_every_test_is_that_of_its_heads_and_queries() -> None:
    """Against single tests, one after the other, in the order of the sizes."""
    true, random, formula = drawn(0), drawn(1, 0.5), drawn(2, 1.5)
    tests = planted(true, random, formula)
    assert set(tests) == {units_key(*unit) for unit in itertools.product(EXPECTED, TESTS[1:], LEVELS)}
    late = [i for i, position in enumerate(POSITIONS.tolist()) if position >= LENGTH // 2]
    for expected, other in (("random sets", random), ("formula", formula)):
        for level in LEVELS:
            by_query = [_first(level, [(true[:, q, g], other[:, q, g]) for g in range(len(GRID))]) for q in late]
            assert tests[units_key(expected, "each query", level)].tolist() == by_query
            pooled = []
            for g, n in enumerate(GRID):
                some = [q for q, position in enumerate(POSITIONS.tolist()) if position + 1 > n]
                pooled.append((true[:, some, g].flatten(), other[:, some, g].flatten()))
            assert tests[units_key(expected, "all queries", level)].tolist() == [_first(level, pooled)]


def _first(level: float, samples: list[tuple[Tensor, Tensor]]) -> float:
    return next((float(n) for n, both in zip(GRID, samples, strict=True) if ks_test(*both)[1] > level), math.inf)


def test_readings_that_differ() -> None:
    """Head means tell the sets apart where single queries do not; and the formula where random sets do."""
    noise, other = drawn(0), drawn(1)
    tests = planted(noise, other + 0.9, noise + 100)
    middle = {test: over_units(tests[units_key("random sets", test, 0.01)])[0] for test in TESTS[1:]}
    assert middle == {"each query": 1.0, "all queries": None}
    means = [noise.mean(1)[:, 0], (other + 0.9).mean(1)[:, 0]]
    assert ks_test(*means)[1] <= 0.01  # the means of queries scatter less
    for test in TESTS[1:]:
        assert over_units(tests[units_key("formula", test, 0.01)]) == (None, 1.0)


def test_sets_of_more_than_half_the_window_are_not_tested() -> None:
    """Only at 24 of 32 keys are the distances those of random sets, so a test that went there would stop there."""
    grid = (1, 8, 16, 24)
    made = torch.Generator().manual_seed(0)
    true, random = (torch.randn(HEADS, len(POSITIONS), len(grid), generator=made) for _ in range(2))
    random[..., :3] += 100
    distances = QueryDistances()
    defined = torch.ones_like(true, dtype=torch.bool)
    distances.add(Reading(true, defined, control=random), Reading(random, defined))
    distances.end_layer(POSITIONS)
    critical = distances.tests(LENGTH, grid)
    assert all(bool(values.isinf().all()) for values in critical.values())


def test_the_middle_test_and_the_share_that_rejects() -> None:
    inf = math.inf
    assert over_units(torch.tensor([4.0, inf, 1.0])) == (4.0, pytest.approx(1 / 3))
    assert over_units(torch.tensor([4.0, inf, inf])) == (None, pytest.approx(2 / 3))
    assert over_units(torch.tensor([4.0, inf])) == (4.0, 0.5)
    assert over_units(torch.tensor([math.nan, 8.0])) == (8.0, 0.0)
    assert over_units(torch.tensor([math.nan])) == (None, None)
    assert over_units(torch.tensor([])) == (None, None)


# What is said


def judged(values: dict[tuple[str, str], float | None], heads: int = 48) -> Claim:
    """The statement on critical N, with these ones at 1,024 tokens by reading; none by the default reading."""
    rows = [
        ("embedding", 1024, level, expected, test, values.get((expected, test)), 0.0, 512)
        for expected, test in READINGS
        for level in LEVELS
    ]
    names = ["vectors", "length", "level", "expected", "test", "critical_n", "rejecting", "largest_n"]
    readings = pl.DataFrame(rows, schema=names, orient="row")
    critical = readings.filter((pl.col("expected") == DEFAULT[0]) & (pl.col("test") == DEFAULT[1]))
    nothing = pl.DataFrame(schema={"vectors": pl.String, "length": pl.Int64, "value": pl.Float64})
    tables = {"critical": critical, "readings": readings, "proportional": nothing}
    claims = Reproduction.of({"2c": Figure("2c", tables, {"heads": heads})}, {}, {}).claims
    return next(claim for claim in claims if claim.topic == "critical N")


def test_a_verdict_that_does_not_depend_on_the_reading() -> None:
    claim = judged({})
    assert claim.answer == "does not hold"
    assert "The verdict is the same under all 6 readings" in claim.measured
    assert len(claim.numbers) == 2 + 5
    assert set(claim.numbers.values()) == {None}


def test_a_verdict_that_does() -> None:
    claim = judged({("formula", "head means"): 61.0})
    assert claim.answer == "does not hold"  # that of the default reading
    assert claim.measured.endswith("The verdict depends on the reading: it differs for formula and head means (holds)")
    assert claim.numbers["critical N / L at 0.01, formula, head means"] == 61 / 1024


def test_tests_of_few_heads_are_not_judged() -> None:
    claim = judged({("formula", "all queries"): 61.0}, heads=2)
    assert claim.answer == "cannot be judged"
    assert "formula and all queries (holds)" in claim.measured
    assert "random sets and all queries (does not hold)" in claim.measured
    assert "each query" not in claim.measured  # of as few heads: not judged either, so no difference


# In a reproduction


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, Path]:
    folder = tmp_path_factory.mktemp("run") / "out"
    made = abbe.reproduce(
        tiny_runs.model(), tiny_runs.TEXT, figures=["2c"], windows=2, queries=6, progress=False, folder=folder
    )
    return made, folder


def test_the_table_has_every_reading(reproduced: tuple[Reproduction, Path]) -> None:
    table = reproduced[0].figures["2c"].tables["readings"]
    assert table.select("vectors", "length", "level", "expected", "test").rows() == [
        (kind, length, level, *reading)
        for kind in ("embedding", "value")
        for length in (32, 64)
        for level in LEVELS
        for reading in READINGS
    ]
    assert table["rejecting"].is_between(0, 1).all()
    assert (table["critical_n"].drop_nulls() <= 32).all()


def test_the_default_reading_is_the_old_number(reproduced: tuple[Reproduction, Path]) -> None:
    tables = reproduced[0].figures["2c"].tables
    default = tables["readings"].filter((pl.col("expected") == DEFAULT[0]) & (pl.col("test") == DEFAULT[1]))
    keys = ["vectors", "length", "level"]
    both = default.join(tables["critical"], on=keys, suffix="_before")
    assert both.height == tables["critical"].height
    assert both["critical_n"].to_list() == both["critical_n_before"].to_list()
    assert both["largest_n"].to_list() == both["largest_n_before"].to_list()


def test_page_files_and_json_show_it(reproduced: tuple[Reproduction, Path]) -> None:
    made, folder = reproduced
    assert len(json.loads((folder / "reproduction.json").read_text())["critical_n"]) == 2 * 2 * 2 * 6
    assert pl.read_csv(folder / "data" / "figure-2c-readings.csv").height == 2 * 2 * 2 * 6
    page = made.to_html()
    rows = page.partition("Critical N under each reading, token embeddings, 64 tokens")[2].partition("</table>")[0]
    assert rows.count("<tr>") == 1 + 6
    text = printed(made, 120)
    for expected, test in READINGS:
        assert f"<td>{expected}</td><td>{test}</td>" in rows
        assert [expected, test] in [
            [cell.strip() for cell in line.split("  ") if cell][:2] for line in text.split("\n")
        ]
    assert "reading" in next(claim.measured for claim in made.claims if claim.topic == "critical N")
