"""The separable share of the weight: against loops, by hand, at the edges."""

from __future__ import annotations

import pytest
import torch
from row_cases import nasty_rows, random_rows
from separable_by_loops import plain_separable

from abbe.measures import Rows, active_keys, choose_sets, geometry, separable_weight


def compare_separable(rows: Rows, size: int, tolerance: float) -> int:
    """Compares all rows; how many there were."""
    weight, compared = separable_weight(rows, size), 0
    assert bool(weight.value.isfinite().all())
    for head in range(rows.heads):
        vectors = rows.group(head).double().tolist()
        for query in range(rows.queries):
            seen = rows.visible[head, query].nonzero()[:, 0].tolist()
            want = plain_separable(rows.weights[head, query].double().tolist(), seen, vectors, size)
            assert bool(weight.defined[head, query]) == (want is not None)
            if want is not None:
                assert float(weight.value[head, query]) == pytest.approx(want, abs=tolerance)
                compared += 1
    return compared


SPECS = ["softmax", "sparsemax", "entmax:alpha=1.5", "topk:k=3", "sink:b=1"]


@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
@pytest.mark.parametrize("spec", SPECS)
def test_separable_weight_by_loops(spec: str, mask: str) -> None:
    for size in (1, 4, 20):
        rows = random_rows(size, keys=24, mask=mask, spec=spec, groups=2)
        assert compare_separable(rows, size, 1e-12) >= 20


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("mask", ["causal", "some"])
@pytest.mark.parametrize("spec", ["softmax", "sparsemax"])
def test_separable_weight_by_loops_where_kernels_order_the_keys(spec: str, mask: str) -> None:
    rows = random_rows(9, keys=24, mask=mask, spec=spec, groups=1, dtype=torch.float32)
    for size in (5, 20):  # a kernel's order repeats the first key beyond those that a row sees
        assert compare_separable(rows, size, 1e-9) >= 20


@pytest.mark.parametrize("name", nasty_rows())
def test_separable_weight_at_the_edges(name: str) -> None:
    rows = nasty_rows()[name]
    weight = separable_weight(rows, 5)
    assert bool(weight.value.isfinite().all())
    assert bool(((weight.value >= 0) & (weight.value <= 1 + 1e-12)).all())
    compare_separable(rows, 5, 1e-9)


def one_row(weights: list[float], vectors: list[list[float]]) -> Rows:
    logits = torch.zeros(1, 1, len(weights), dtype=torch.float64)
    return Rows(logits, torch.tensor([[weights]]).double(), torch.tensor([vectors]).double())


def test_separable_weight_by_hand() -> None:
    """s = (3, 0): the two selected lie 1 and 2 from it, the unselected one 1.5."""
    rows = one_row([0.4, 0.35, 0.25], [[5.0, 0], [20 / 7, 0], [6, 0]])
    assert float(separable_weight(rows, 2).value) == pytest.approx(0.4)


def test_ties_are_not_separable() -> None:
    """Equal keys: whichever are selected, one outside lies as near."""
    weight = separable_weight(one_row([0.25] * 4, [[1.0, 2, 0.3]] * 4), 2)
    assert bool(weight.defined)
    assert float(weight.value) == 0


def test_zeros_gain_nothing_though_separability_counts_them() -> None:
    """Two keys have weight, neither is separable; 18 keys without weight fill up the set and tie with the rest."""
    vectors = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).tolist()
    vectors[0], vectors[1] = [1.0, 0, 0, 0, 0, 0], [-1.0, 0, 0, 0, 0, 0]
    rows = one_row([0.5, 0.5] + [0.0] * 38, vectors)
    sets = choose_sets(rows, (20,), torch.Generator().manual_seed(0))
    assert float(geometry(rows, sets)["separability"].value) == pytest.approx(0.9)
    assert float(separable_weight(rows).value) == 0


def test_two_keys_and_one() -> None:
    """Of two keys one is selected, its own sum: separable unless the other is the same point."""
    assert float(separable_weight(one_row([0.7, 0.3], [[1.0], [1.0]])).value) == pytest.approx(0.7)
    assert float(separable_weight(one_row([0.7, 0.3], [[3.0], [7.0]])).value) == 0
    assert not bool(separable_weight(one_row([1.0], [[1.0]])).defined)


def test_rows_without_weight_are_not_defined() -> None:
    assert not bool(separable_weight(one_row([0.0] * 5, [[1.0]] * 5)).defined)


def test_active_keys_have_a_weight_above_0() -> None:
    rows = random_rows(1, keys=24, mask="some", spec="sparsemax")
    reading = active_keys(rows)
    assert torch.equal(reading.value, (rows.weights > 0).sum(-1))
    assert torch.equal(reading.defined, rows.visible.any(-1))
