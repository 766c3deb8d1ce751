"""lipschitz(keys) is never exceeded by an adversarial search, and reached where the constant is known to be tight."""

from __future__ import annotations

import math

import pytest
import torch
from normalizer_cases import Case, every_case, random_logits, slow
from torch import Tensor

import abbe

TIGHT = (
    "softmax",
    "softmax:temperature=0.3",
    "softmax1",
    "sink:b=8",
    "sink:b=-8",
    "ssmax:s=0.7",
    "logn:trained=16",
    "learned-temperature:t=0.5",
    "sparsemax",
    "sigmoid",
    "sigmoid:bias=-2",
    "entmax:alpha=1.25",
    "entmax:alpha=1.5",
    "entmax:alpha=1.75",
    "entmax:alpha=1.3,learn=true",
)


def spectral_norms(made: abbe.Normalizer, rows: Tensor) -> Tensor:
    """Of the Jacobians of (batch, keys) rows; exact for short ones, from below (power iteration) for long ones."""
    with torch.no_grad():
        j = made.jacobian(rows[:, None, None].expand(-1, 3, 1, -1)).flatten(0, 2)
    if rows.shape[-1] <= 8:
        norms = torch.linalg.matrix_norm(j, ord=2)
    else:
        vector = random_logits(len(j), rows.shape[-1], 1, seed=1)
        for _ in range(12):
            vector = torch.nn.functional.normalize(j.mT @ (j @ vector), dim=1)
        norms = (j @ vector).norm(dim=(-2, -1))
    return norms.view(len(rows), 3).amax(-1)


def starting_rows(keys: int, count: int, seed: int = 0) -> Tensor:
    """Two- and three-level rows and random ones, at scales from 1e-3 to 10 and at any offset."""
    draw = torch.Generator().manual_seed(seed + keys)
    levels = torch.randn(count, 3, generator=draw, dtype=torch.float64)
    levels[: count // 2, 2] = levels[: count // 2, 1]
    rare = torch.rand(count, 1, generator=draw) ** 2
    which = (torch.rand(count, keys, generator=draw) < rare).long() + (torch.rand(count, keys, generator=draw) < 0.2)
    rows = levels.gather(-1, which)
    rows[count * 3 // 4 :] = torch.randn(count - count * 3 // 4, keys, generator=draw, dtype=torch.float64)
    scale = 10 ** torch.empty(count, 1, dtype=torch.float64).uniform_(-3, 1, generator=draw)
    offset = torch.randn(count, 1, generator=draw, dtype=torch.float64) * 3
    return scale * rows + offset * (torch.rand(count, 1, generator=draw) < 0.7)


def known_peaks(keys: int) -> Tensor:
    """Rows that the theory names: two equal keys above the rest; one key against m equal ones at many gaps."""
    two = torch.full((1, keys), -60.0, dtype=torch.float64)
    two[:, :2] = 0
    gaps = torch.linspace(-3, 6, 61, dtype=torch.float64)
    one = torch.zeros(len(gaps), keys, dtype=torch.float64)
    one[:, 0] = gaps
    rows = [two, two + 100, one, one + math.log(keys)]
    for members in {2, 3, keys // 4, keys // 2} & set(range(2, keys)):
        some = one.clone()
        some[:, members:] = -60
        rows.append(some)
    return torch.cat([row * scale for row in rows for scale in (1.0, 0.3)])


def largest_norm(made: abbe.Normalizer, keys: int, rounds: int = 5) -> float:
    """Random and known rows, then hill-climbing from the best with shrinking steps."""
    count = 300 if keys <= 8 else 90
    rows = torch.cat([starting_rows(keys, count), known_peaks(keys)])
    norms = spectral_norms(made, rows)
    best, value = rows[norms.argmax()], float(norms.max())
    for turn in range(rounds):
        move = random_logits(count // 3, keys, seed=turn, scale=0.5 * 0.4**turn)
        move[::2] *= torch.rand(len(move[::2]), keys, generator=torch.Generator().manual_seed(turn)) < 0.2
        norms = spectral_norms(made, best + move)
        if float(norms.max()) > value:
            best, value = (best + move)[norms.argmax()], float(norms.max())
    return value


@every_case()
@pytest.mark.parametrize("keys", [1, 2, 8, slow(3), slow(64)])
def test_never_exceeded(case: Case, keys: int) -> None:
    made = case.make()
    assert largest_norm(made, keys) <= made.lipschitz(keys=keys) * (1 + 1e-9) + 1e-12


@pytest.mark.quick(30)
@pytest.mark.parametrize("spec", TIGHT)
@pytest.mark.parametrize("keys", [1, 2, 8, 64])
def test_reached_within_two_percent(spec: str, keys: int) -> None:
    made = abbe.normalizer(spec).double()
    assert largest_norm(made, keys) >= 0.98 * made.lipschitz(keys=keys)


@every_case()
def test_grows_with_the_row_and_is_positive(case: Case) -> None:
    made = case.make()
    constants = [made.lipschitz(keys=keys) for keys in (1, 2, 3, 10, 100, 1024, 100_000)]
    assert constants == sorted(constants)
    assert constants[0] >= 0
    assert constants[-1] > 0 or case.spec == "topk:k=1"


@pytest.mark.parametrize(
    "spec", ["norm-softmax", "self-adjusted", "relu:eps=0", "relu:power=2,eps=0", "softpick:eps=0"]
)
def test_infinite_constants_are_infinite(spec: str) -> None:
    made = abbe.normalizer(spec)
    assert made.lipschitz(keys=2) == made.lipschitz(keys=4) == math.inf
    row = torch.tensor([[1.0, 0.2, -0.5, 0.7]], dtype=torch.float64)
    norms = [float(spectral_norms(made, row * scale)) for scale in (1e-3, 1e-6, 1e-9)]
    assert norms[0] < norms[1] < norms[2]
    assert norms[2] > 1e8


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("eps", [1e-6, 0.01, 0.5])
def test_the_bound_of_relu_is_made_of_its_steepest_slope(power: float, eps: float) -> None:
    """max u of one key, p l^(p-1) / (l^p + eps), found on a grid; the docstring's bound adds ||w|| ||u|| of n keys."""
    logits = torch.logspace(-12, 2, 200_001, dtype=torch.float64)
    steepest = float((power * logits ** (power - 1) / (logits**power + eps)).max())
    made = abbe.normalizer("relu", power=power, eps=eps)
    for keys in (1, 16):
        share = keys ** (max(0.0, 2 - power) / (2 * power))
        assert made.lipschitz(keys) == pytest.approx(steepest * (1 + share), rel=1e-4)


def test_values_from_the_notes() -> None:
    """Section 5: entmax-1.5 is .707 for short rows and .869 at 1024; sparsemax 1; sigmoid 1/4; ssmax s ln(n)/2."""
    entmax = abbe.normalizer("entmax:alpha=1.5")
    assert entmax.lipschitz(keys=2) == pytest.approx(math.sqrt(0.5), rel=1e-6)
    assert entmax.lipschitz(keys=1024) == pytest.approx(0.869, abs=5e-4)
    assert abbe.normalizer("sparsemax").lipschitz(keys=9) == 1
    assert abbe.normalizer("entmax:alpha=2").lipschitz(keys=9) == pytest.approx(1, rel=1e-9)
    assert abbe.normalizer("entmax", alpha=1 + 1e-9).lipschitz(keys=1024) == pytest.approx(0.5, rel=1e-6)
    assert abbe.normalizer("sigmoid").lipschitz(keys=9) == 0.25
    assert abbe.normalizer("ssmax:s=2").lipschitz(keys=100) == pytest.approx(math.log(100), rel=1e-12)
    assert abbe.normalizer("softmax:temperature=0.25").lipschitz(keys=7) == 2
    assert abbe.normalizer("relu:eps=0").lipschitz(keys=1) == 0  # all the weight


@pytest.mark.parametrize("keys", [0, -3])
def test_needs_a_key(keys: int) -> None:
    with pytest.raises(abbe.AbbeError, match=f"keys must be a whole number >= 1, got {keys}"):
        abbe.normalizer("softmax").lipschitz(keys=keys)


@pytest.mark.parametrize("spec", ["sigmoid", "softmax1", "sink:b=2", "stick-breaking"])
def test_a_gate_of_one_key_is_a_sigmoid(spec: str) -> None:
    made = abbe.normalizer(spec).double()
    assert made.lipschitz(1) == 0.25
    slopes = made.jacobian(torch.linspace(-4, 4, 801, dtype=torch.float64)[:, None])
    assert float(slopes.max()) == pytest.approx(0.25, rel=1e-4)


def test_one_kept_key_has_a_weight_of_1_or_that_of_softmax() -> None:
    assert abbe.normalizer("topk:k=1").lipschitz(5) == 0
    full = abbe.normalizer("topk:k=1,renormalize=false")
    assert full.lipschitz(5) == 0.5
    assert float(spectral_norms(full.double(), torch.tensor([[0.3, 0.0, -1.0]], dtype=torch.float64))) > 0.2


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 1.95])
def test_the_constant_of_entmax_is_that_of_the_worst_two_level_row(alpha: float) -> None:
    """One weight p against m - 1 equal ones, a and b their powers 2 - alpha: the norm is m a b/(a + (m - 1) b)."""
    p = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    worst = 0.0
    for m in range(2, 33):
        a, b = p ** (2 - alpha), ((1 - p) / (m - 1)) ** (2 - alpha)
        worst = max(worst, float((m * a * b / (a + (m - 1) * b)).max()))
        assert abbe.normalizer("entmax", alpha=alpha).lipschitz(m) == pytest.approx(worst, rel=1e-8)
