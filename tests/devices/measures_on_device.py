"""Checks of what is measured of rows: both sides of the bounds, measures and statistics.

Numbers are those of the CPU without kernels, exactly, unless a check says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import row_cases
import torch
from device_checks import DEVICE, Checks, kernels_for_all, moved, same, torch_path
from torch import Tensor

import abbe
from abbe import bounds, measures

checks = Checks()


# -- Bounds -----------------------------------------------------------------------------------------------------------


def tried(statement: bounds.Statement) -> None:
    """Both sides of a statement at random points of the smallest size."""

    def make() -> bounds.Point:
        return statement.sampler(torch.Generator().manual_seed(0), 20, statement.sizes[0])

    with torch_path():
        point = make()
        wanted = statement.measured(point), statement.bound(point), statement.ratio(point)
    placed = bounds.Point(moved(make().values), statement.sizes[0])
    # Singular values depend on the layout of a matrix in memory, in the last digits.
    rel = 1e-14 if statement.section == "gradient" else 0.0
    same((statement.measured(placed), statement.bound(placed), statement.ratio(placed)), wanted, rel)


_QUICK = "top-mass", "log-margin", "theorem-1", "expected-distance-upper", "sphere-lower", "deletion-error"
for _statement in bounds.catalogue():
    checks.add(f"bounds {_statement.name}", _statement, quick=_statement.name in _QUICK)(tried)


# -- Measures ---------------------------------------------------------------------------------------------------------


def placed(rows: measures.Rows) -> measures.Rows:
    given = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{name: x.to(DEVICE) for name, x in given.items() if isinstance(x, Tensor)})


def all_readings(rows: measures.Rows) -> dict[str, measures.Reading]:
    """Every measure, the generators on the CPU as in the studies."""
    draw = torch.Generator().manual_seed(1)
    sets = measures.choose_sets(rows, (1, 2, 5), draw)
    tokens = (torch.arange(rows.keys) % 7).to(rows.logits.device)
    positions = torch.linspace(0, rows.keys - 1, rows.queries).round().long()
    normalizer = abbe.normalizer("softmax")
    readings: dict[str, Any] = measures.dispersion(rows) | measures.patterns(rows, positions, tokens)
    readings |= measures.selection(rows, sets) | measures.decay(rows) | measures.geometry(rows, sets)
    readings |= measures.sensitivity(rows, normalizer, (0.1, 1.0), draw)
    if rows.softmax or rows.sink:  # others have none
        readings |= measures.differences(rows, (0.1, 1.0), (0.01, 1.0), draw)
    readings |= measures.expected_distance(rows, sets) | measures.distance_formula(rows, sets)
    readings |= {"separable": measures.separable_weight(rows), "active": measures.active_keys(rows)}
    return readings


def measured(rows: measures.Rows) -> Any:
    """All readings of two blocks and their means."""
    readings = all_readings(rows)
    state = measures.update(measures.update({}, readings), readings)
    parts = {name: [x for x in vars(reading).values() if isinstance(x, Tensor)] for name, reading in readings.items()}
    means = {name: [x for x in vars(one).values() if x is not None] for name, one in measures.compute(state).items()}
    return parts, means


def rows_measured(rows: measures.Rows, work: Callable[[measures.Rows], Any] = measured) -> None:
    with torch_path():
        wanted = work(rows)
    with kernels_for_all():
        same(work(placed(rows)), wanted)


for _spec, _mask in (("softmax", "causal"), ("sink:b=0.5", "window"), ("sparsemax", "all"), ("sigmoid", "some")):
    for _dtype in (torch.float32, torch.float64):
        _rows = row_cases.random_rows(spec=_spec, mask=_mask, groups=2, dtype=_dtype)
        _quick = _spec == "softmax" and _dtype == torch.float32
        checks.add(f"measures {_spec} {_mask} {_dtype}", _rows, quick=_quick)(rows_measured)
for _name, _rows in row_cases.nasty_rows(torch.float32).items():
    checks.add(f"measures {_name}", _rows)(rows_measured)


@checks.add("sensitivity of another normalizer", quick=True)
def other_sensitivity() -> None:
    def work(rows: measures.Rows) -> Any:
        normalizer, draw = abbe.normalizer("entmax:alpha=1.5"), torch.Generator().manual_seed(1)
        return {name: one.value for name, one in measures.sensitivity(rows, normalizer, (0.5,), draw).items()}

    rows_measured(row_cases.random_rows(dtype=torch.float32), work)


@checks.add("statistics")
def statistics() -> None:
    draw = torch.Generator().manual_seed(0)
    values, control = (torch.rand(9, 3, generator=draw, dtype=torch.float64) for _ in "ab")

    def work(values: Tensor, control: Tensor) -> Any:
        ends = measures.bootstrap_interval(values, resamples=50, seed=0)
        return [*ends], [*measures.ks_test(values[:, 0], control[:, 0])], measures.resampled_means(values, 50, 0)

    same(work(values.to(DEVICE), control.to(DEVICE)), work(values, control))
