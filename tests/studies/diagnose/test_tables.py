"""Rows for all heads together, and queries that see enough keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import tiny_runs
import torch
from row_cases import expanded_tail
from tiny_runs import pick, run

from abbe.measures import bootstrap_interval, critical_n, resampled_means
from abbe.models import Window
from abbe.runs.inputs import Settings
from abbe.runs.tables import LEVELS, _largest, table
from abbe.runs.window import query_positions


def settings(**changes: Any) -> Settings:
    return tiny_runs.settings(64, **({"sizes": (1, 2), "resamples": 200} | changes))


def record(value: torch.Tensor, name: str = "distance") -> dict[str, torch.Tensor]:
    """One window with two layers of three heads and two sizes."""
    sums = {
        f"decay/{key}": torch.ones(2, 3, dtype=torch.float64)
        for key in ("rows", "x", "y", "xx", "xy", "smallest", "largest")
    }
    parts = {f"{name}/value": value, f"{name}/limit": value + 1, f"{name}/control": value / 2}
    return parts | ({} if name == "distance" else record(torch.rand(2, 3, 2).double())) | sums


def of_all(records: list[dict[str, torch.Tensor]], measure: str) -> pl.DataFrame:
    made = table("made up", {40: records}, settings())
    return pick(made, measure, 40, of_heads=False).sort("n")


def test_all_heads_together_are_their_mean_with_the_interval_of_whole_windows() -> None:
    values = torch.rand(3, 2, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = of_all([record(x) for x in values], "distance")
    means = values.flatten(1, 2).mean(1)
    low, high = bootstrap_interval(means, level=0.95, resamples=200, seed=0)
    for column, want in {
        "value": means.mean(0),
        "low": low,
        "high": high,
        "limit": means.mean(0) + 1,
        "control": means.mean(0) / 2,
    }.items():
        torch.testing.assert_close(torch.tensor(rows[column].to_list(), dtype=torch.float64), want)
    assert rows["n"].to_list() == [1, 2]
    assert rows["layer"].null_count() == 2


def test_interval_of_all_heads_is_that_of_what_they_share() -> None:
    """Heads that move together from window to window do not average out; heads against each other do."""
    together = torch.tensor([1.0, 2.0, 3.0]).double().view(3, 1, 1, 1).expand(3, 2, 3, 2)
    against = together * torch.tensor([1.0, -1.0]).double().view(1, 2, 1, 1)
    wide = of_all([record(x.clone()) for x in together], "distance")
    none = of_all([record(x.clone()) for x in against], "distance")
    assert wide["high"][0] - wide["low"][0] > 1
    assert none["high"][0] - none["low"][0] == pytest.approx(0, abs=1e-12)


def test_a_maximum_over_rows_is_a_maximum_over_heads() -> None:
    values = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows = of_all([record(x, "sensitivity_worst_max") for x in values], "sensitivity_worst_max")
    assert rows["value"].to_list() == [values.max().item()]
    assert rows["limit"].to_list() == [values.max().item() + 1]


def test_a_head_without_a_limit_leaves_all_heads_without_one() -> None:
    values = torch.rand(3, 2, 3, 2, dtype=torch.float64)
    records = [record(x) for x in values]
    records[1]["distance/limit"][1, 2, 0] = torch.nan
    rows = of_all(records, "distance")
    assert rows["limit"][0] is None
    assert rows["limit"][1] is not None


def test_intervals_of_the_test_against_random_sets_are_expanded_for_few_windows() -> None:
    """ks_statistic, ks_p_value and critical_n against tests of every resample, for unequal windows."""
    heads = torch.linspace(0, 1, 40, dtype=torch.float64).view(2, 20, 1)
    shifts = torch.tensor([[0, 0.8, 0.8, 0.8, 0.8, 0.8], [0, 0.02, 0.05, 0.09, 0.14, 0.2]], dtype=torch.float64)
    values = heads + shifts.T.view(6, 1, 1, 2)
    sums = {name: torch.ones(2, 20).double() for name in record(values[0]) if name.startswith("decay/")}
    controls = heads.expand(2, 20, 2)
    records = [sums | {"distance/value": x, "distance/control": controls} for x in values]
    asked = settings(windows=6, resamples=4000)
    rows = table("made up", {40: records}, asked)
    resampled = resampled_means(values, 400, asked.seed).reshape(400, 40, 2).transpose(1, 2)
    again = [critical_n(one.contiguous(), controls.reshape(40, 2).T.contiguous(), (1, 2), LEVELS) for one in resampled]
    drawn = {("ks_statistic", n): [one.statistic[n - 1] for one in again] for n in (1, 2)}
    drawn |= {("ks_p_value", n): [one.p_value[n - 1] for one in again] for n in (1, 2)}
    drawn["critical_n@0.01", None] = [one.critical[0.01] for one in again]
    tail = expanded_tail(6, 0.95)
    for (name, n), numbers in drawn.items():
        row = rows.filter(pl.col("measure") == name, pl.col("n").eq_missing(n)).row(0, named=True)
        ends, plain = (np.quantile(numbers, [q, 1 - q]).tolist() for q in (tail, 0.025))
        assert [row["low"], row["high"]] == pytest.approx(ends, rel=1e-6)
        assert ends != pytest.approx(plain, rel=1e-3), (name, n)


def test_absent_heads_count_nowhere() -> None:
    values = torch.rand(3, 2, 3, 2, dtype=torch.float64)
    values[:, 1, 2] = torch.nan
    rows = of_all([record(x) for x in values], "distance")
    want = values.flatten(1, 2)[:, :5].mean((0, 1))
    torch.testing.assert_close(torch.tensor(rows["value"].to_list(), dtype=torch.float64), want)


def test_every_measure_of_heads_has_a_row_for_all() -> None:
    heads = run(lengths=[40]).table.filter(pl.col("length") == 40)
    single = set(heads.filter(pl.col("head").is_not_null())["measure"])
    together = set(heads.filter(pl.col("head").is_null())["measure"])
    assert {name for name in single if "_p95" not in name} <= together
    assert not [name for name in together if "_p95" in name]


@pytest.mark.parametrize(("queries", "least"), [(8, 0), (8, 20), ("all", 20), (30, 20)])
def test_queries_that_see_too_few_keys_are_left_out(queries: int | str, least: int) -> None:
    window = Window(40, 0, torch.arange(40), 0, 1)
    asked = replace(settings(queries=queries), more_than=least)
    positions = query_positions(40, asked, window).tolist()
    assert positions == sorted(set(positions))
    assert min(positions) >= least  # position p sees p + 1 keys
    assert len(positions) == (40 - least if queries in ("all", 30) else 8)
    if queries == 8:
        stretch = (40 - least) / 8
        assert [int((p - least) // stretch) for p in positions] == list(range(8))


def test_the_largest_of_nothing_is_unknown() -> None:
    """NaN only where all are: a maximum of no number is no minus infinity."""
    values = torch.tensor([[1.0, torch.nan, torch.nan], [3.0, 2.0, torch.nan]], dtype=torch.float64)
    assert _largest(values, 0)[:2].tolist() == [3, 2]
    assert _largest(values, 0)[2].isnan()
