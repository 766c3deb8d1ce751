"""Sensitivity against eigenvalues and the normalizers' closed-form Jacobians."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import largest_eigenvalue
from normalizer_cases import Case, every_case, generic_logits, random_mask
from row_cases import as_type, changed, nasty_rows, random_rows, seeded
from torch import Tensor

import abbe
from abbe import bounds
from abbe.measures import Rows, sensitivity, summarize

SOFTMAX = abbe.normalizer("softmax")


def rows_of(normalizer: abbe.Normalizer, logits: Tensor, softmax: bool = False) -> Rows:
    with torch.no_grad():
        weights = normalizer(logits)
    return Rows(logits, weights, torch.zeros(1, logits.shape[-1], 1, dtype=logits.dtype), softmax=softmax)


@pytest.mark.quick(19)
@every_case()
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_worst_and_random_are_those_of_the_jacobian(case: Case, temperature: float) -> None:
    made = case.make()
    logits = generic_logits(case, 3, 4, 9)
    logits = logits.masked_fill(~random_mask(3, 4, 9), -math.inf)
    rows = rows_of(made, logits * temperature)
    readings = sensitivity(rows, made, (temperature,), seeded(1))
    suffix = "" if temperature == 1 else "@T=0.5"
    with torch.no_grad():
        jacobian = made.jacobian(logits) / temperature
    norms = torch.linalg.matrix_norm(jacobian, ord=2)
    worst, random = readings[f"sensitivity_worst{suffix}"], readings[f"sensitivity_random{suffix}"]
    torch.testing.assert_close(worst.value, norms, rtol=1e-5, atol=1e-9)
    assert bool((random.value <= norms * (1 + 1e-9) + 1e-12).all())
    expected = [[made.lipschitz(int(n)) / temperature for n in row] for row in rows.count]
    torch.testing.assert_close(worst.limit, torch.tensor(expected, dtype=torch.float64))
    assert bool((norms <= worst.limit * (1 + 1e-9) + 1e-12).all())


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "topk:k=5", "adaptive-temperature", "relu", "stick-breaking"])
def test_float32_is_right_within_1e_4(spec: str, kernels: None) -> None:
    made = abbe.normalizer(spec)
    logits = random_rows(2, heads=2, queries=6, keys=64, mask="causal", dtype=torch.float32).logits
    worst = sensitivity(rows_of(made, logits), made, (1.0,), seeded(1))["sensitivity_worst"].value
    norms = torch.linalg.matrix_norm(made.jacobian(logits.double()), ord=2)
    torch.testing.assert_close(worst.double(), norms, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", ["softmax", "sparsemax", "entmax:alpha=1.5", "sigmoid", "stick-breaking", "relu"])
def test_random_direction_is_uniform(spec: str) -> None:
    """Mean square of ||J u|| is ||J||_F^2 / n."""
    made = abbe.normalizer(spec).double()
    repeats = 3000
    logits = random_rows(3, heads=1, queries=1, keys=6, mask="all").logits
    logits[..., 2] = -math.inf
    rows = rows_of(made, logits.expand(1, repeats, -1).contiguous())
    squares = sensitivity(rows, made, (1.0,), seeded(4))["sensitivity_random"].value ** 2
    exact = float((made.jacobian(logits) ** 2).sum()) / 5
    assert abs(float(squares.mean()) - exact) <= 4 * float(squares.std()) / math.sqrt(repeats)


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.01, 60), st.booleans())
def test_secular_equation_gives_the_largest_eigenvalue(seed: int, keys: int, scale: float, sink: bool) -> None:
    logits = scale * torch.randn(5, keys + 1, generator=seeded(seed), dtype=torch.float64)
    logits[0, :] = 0  # ties
    logits[1, : keys // 2] = 1
    if not sink:
        logits[:, -1] = -math.inf
    weights = torch.softmax(logits, -1)
    p, missing = weights[:, :-1], weights[:, -1]
    expected = torch.linalg.eigvalsh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])[..., -1].clamp(min=0)
    torch.testing.assert_close(largest_eigenvalue(p, missing), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("sink", [False, True])
def test_kernel_gives_the_same_within_1e_5(scale: float, sink: bool, kernels: None) -> None:
    """Compared in float64 at the same float32 weights, or logits; tiny norms of peaked rows keep their digits."""
    rows = random_rows(5, heads=3, queries=20, keys=120, mask="causal", scale=scale, dtype=torch.float32)
    if sink:
        weights = torch.softmax(torch.cat([rows.logits, torch.ones(3, 20, 1)], -1), -1)[..., :-1]
        rows = Rows(rows.logits, weights.contiguous(), rows.vectors, sink=True)
    precise = as_type(rows, torch.float64)
    fast = sensitivity(rows, SOFTMAX, (1.0, 0.3), seeded(6))
    missing = (1 - rows.facts.total.double()).clamp(min=0) if sink else torch.zeros(3, 20, dtype=torch.float64)
    expected = largest_eigenvalue(precise.weights, missing)
    torch.testing.assert_close(fast["sensitivity_worst"].value.double(), expected, rtol=1e-5, atol=1e-12)
    if not sink:
        cold = torch.softmax((rows.logits / 0.3).double(), -1)
        expected = largest_eigenvalue(cold, missing) / 0.3
        torch.testing.assert_close(fast["sensitivity_worst@T=0.3"].value.double(), expected, rtol=1e-5, atol=1e-9)
    for reading in fast.values():
        assert bool((reading.value <= reading.limit * (1 + 1e-5) + 1e-6).all())


def test_kernel_moves_a_direction_like_the_jacobian(kernels: None) -> None:
    from inside import rank_one_norms

    rows = random_rows(7, heads=2, queries=5, keys=40, mask="some", dtype=torch.float32)
    directions = torch.randn(5, 40, generator=seeded(8))
    norms = rank_one_norms(rows, rows.weights, torch.zeros(()), directions)[1].double()
    for head in range(2):
        for query in range(5):
            a = rows.weights[head, query].double()
            u = torch.where(rows.visible[head, query], directions[query].double(), 0.0)
            if rows.count[head, query] == 0:
                assert float(norms[head, query]) == 0
                continue
            moved = (torch.diag(a) - torch.outer(a, a)) @ (u / u.norm())
            assert float(norms[head, query]) == pytest.approx(float(moved.norm()), rel=1e-5)


def test_sink_of_the_rows_at_any_temperature() -> None:
    rows = random_rows(8, spec="sink:b=0.7", mask="some")
    for t in (1.0, 0.4, 3.0):
        readings = sensitivity(rows, SOFTMAX, (t,), seeded(0))
        worst = readings["sensitivity_worst" + ("" if t == 1 else f"@T={t:g}")]
        cold = abbe.normalizer("sink", b=0.7 / t).double()
        with torch.no_grad():
            norms = torch.linalg.matrix_norm(cold.jacobian(rows.logits / t), ord=2) / t
        torch.testing.assert_close(worst.value[worst.defined], norms[worst.defined], rtol=1e-9, atol=1e-12)
    with pytest.raises(abbe.AbbeError, match="rows with a learned sink"):
        sensitivity(rows, abbe.normalizer("sparsemax"), (1.0,), seeded(0))


@pytest.mark.parametrize("name", nasty_rows())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nasty_rows(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    exact = bounds.spectral_norm(torch.softmax(rows.logits.double(), -1).nan_to_num())
    worst = sensitivity(rows, SOFTMAX, (1.0,), seeded(0))["sensitivity_worst"]
    torch.testing.assert_close(worst.value.double()[worst.defined], exact[worst.defined], rtol=1e-5, atol=1e-12)
    for reading in sensitivity(rows, SOFTMAX, (1.0, 0.01), seeded(0)).values():
        shown = reading.defined
        assert bool(torch.isfinite(reading.value[shown]).all())
        assert bool((reading.value <= reading.limit * (1 + 1e-5) + 1e-7)[shown].all())


def test_equals_the_bounds_library_and_reaches_the_supremum() -> None:
    rows = random_rows(9, mask="all")
    worst = sensitivity(rows, SOFTMAX, (1.0,), seeded(0))["sensitivity_worst"]
    torch.testing.assert_close(worst.value, bounds.spectral_norm(rows.weights), rtol=1e-9, atol=0)
    pair = torch.full((1, 1, 6), -60.0, dtype=torch.float64)
    pair[..., :2] = 1.0
    reached = sensitivity(rows_of(SOFTMAX, pair, softmax=True), SOFTMAX, (1.0,), seeded(0))["sensitivity_worst"]
    torch.testing.assert_close(reached.value, reached.limit, rtol=1e-12, atol=0)


def test_names_and_bad_temperatures() -> None:
    rows = random_rows(10)
    names = set(summarize(sensitivity(rows, SOFTMAX, (1, 0.1), seeded(0))))
    assert "sensitivity_worst_mean" in names
    assert "sensitivity_random_p95@T=0.1" in names
    assert len(names) == 12
    for bad in (0, -1.0, math.nan, math.inf, "1"):
        with pytest.raises(abbe.AbbeError, match="temperatures must be positive numbers"):
            sensitivity(rows, SOFTMAX, (bad,), seeded(0))  # type: ignore[arg-type]


def test_learned_normalizers_leave_no_graph_behind() -> None:
    made = abbe.normalizer("entmax:alpha=1.5,learn=true,heads=4").double()
    rows = random_rows(11)
    with torch.no_grad():
        rows = changed(rows, weights=made(rows.logits))
    readings = sensitivity(rows, made, (1.0, 2.0), seeded(0))
    assert readings
    assert not any(reading.value.requires_grad for reading in readings.values())


def test_small_sinks_keep_their_digits_at_high_temperature() -> None:
    """A sink of weight e^-18 rounds away in 1 - sum of the weights; its logit does not."""
    logits = torch.tensor([[[18.0, 0.3, -1.0, 0.5, 0.0]], [[25.0, 1.0, 2.0, 0.5, 0.0]]])
    sink, t = torch.tensor([0.0, 1.5]), 20.0
    beside = torch.cat([logits, sink[:, None, None]], -1)
    rows = Rows(
        logits, torch.softmax(beside, -1)[..., :-1].contiguous(), torch.ones(1, 5, 2), sink=True, sink_logits=sink
    )
    worst = sensitivity(rows, abbe.normalizer("softmax"), (t,), seeded(0))[f"sensitivity_worst@T={t:g}"].value
    p = torch.softmax(beside.double() / t, -1)[:, 0, :-1]
    exact = [torch.linalg.matrix_norm(torch.diag(row) - torch.outer(row, row), 2) / t for row in p]
    torch.testing.assert_close(worst[:, 0].double(), torch.stack(exact), rtol=1e-5, atol=0)
