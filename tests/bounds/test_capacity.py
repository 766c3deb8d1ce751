"""P20 and the mass law of section 6."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from bound_cases import Placed, close, marked, placed, tensor, top
from hypothesis import given
from hypothesis import strategies as st

from abbe import bounds


def plain_output(a: list[float], x: list[list[float]]) -> list[float]:
    return [math.fsum(p * v[c] for p, v in zip(a, x, strict=True)) for c in range(len(x[0]))]


def plain_errors(case: Placed, subset: set[int]) -> tuple[list[float], list[float]]:
    """Output minus truncated output, without and with renormalised weights, the long way."""
    a, x = case.a.tolist(), case.x.tolist()
    kept = [p if i in subset else 0.0 for i, p in enumerate(a)]
    mass = math.fsum(kept)
    full = plain_output(a, x)
    deleted = plain_output(kept, x)
    renormalised = plain_output([p / mass for p in kept], x)
    return [f - d for f, d in zip(full, deleted, strict=True)], [f - r for f, r in zip(full, renormalised, strict=True)]


@given(placed(), st.data())
def test_p20_truncation_errors(case: Placed, data: st.DataObject) -> None:
    subset = data.draw(st.sets(st.integers(0, case.keys - 1), min_size=1))
    for chosen, inside in ((case.n, set(top(case.a, case.n))), (marked(case.keys, subset), subset)):
        if math.fsum(case.a[i].item() for i in inside) < 1e-6:
            continue
        deletion, renormalised = plain_errors(case, inside)
        errors = bounds.truncation_errors(case.a, case.x, chosen)
        close(errors.deletion, tensor(*deletion), atol=1e-11)
        close(errors.renormalised, tensor(*renormalised), atol=1e-9)


@given(placed())
def test_p20_equality_cases(case: Placed) -> None:
    """Nothing is lost when all are kept; equal values lose nothing when renormalised."""
    for part in bounds.truncation_errors(case.a, case.x, case.keys):
        close(part, 0.0)
    equal = case.x[:1].expand_as(case.x)
    errors = bounds.truncation_errors(case.a, equal, case.n)
    close(errors.renormalised, 0.0, atol=1e-11)
    mass = math.fsum(case.a[i].item() for i in top(case.a, case.n))
    close(errors.deletion, (1 - mass) * equal[0], atol=1e-11)


def test_mass_law_as_printed() -> None:
    assert float(bounds.mass_law(0.06, 1.0)) == pytest.approx(0.29, abs=0.005)
    assert float(bounds.mass_law(0.06, 3.0)) == pytest.approx(0.93, abs=0.005)


@given(st.integers(1, 999).map(lambda i: i / 1000), st.integers(0, 50).map(lambda i: i / 10))
def test_mass_law_by_the_normal_distribution(rho: float, sigma: float) -> None:
    unit = NormalDist()
    close(bounds.mass_law(rho, sigma), unit.cdf(sigma + unit.inv_cdf(rho)), atol=1e-8)
    close(bounds.mass_law(rho, 0.0), rho)
    assert float(bounds.mass_law(rho, sigma + 0.1)) >= float(bounds.mass_law(rho, sigma))


def test_mass_law_takes_tensors() -> None:
    masses = bounds.mass_law(tensor([0.1], [0.5]), tensor(0.5, 1.0, 2.0))
    assert masses.shape == (2, 3)
    close(masses[1, 2], bounds.mass_law(0.5, 2.0))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_mass_law_of_a_long_row(sigma: float) -> None:
    logits = sigma * torch.randn(400_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a = torch.softmax(logits - 5, -1)
    for rho in (0.01, 0.06, 0.5):
        mass = float(bounds.top_mass(a, int(rho * 400_000)))
        assert mass == pytest.approx(float(bounds.mass_law(rho, sigma)), rel=0.03)
