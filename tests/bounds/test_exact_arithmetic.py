"""The headline claims again, without floating point: rational numbers and intervals."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction as F

import pytest
import sympy
import torch
from bound_cases import subsets, tensor
from mpmath import iv

from abbe import bounds

ROOT_2 = iv.sqrt(2)


def rational_weights(generator: random.Random, keys: int) -> list[F]:
    parts = [generator.choice([1, 1, 2, 5, 40]) * generator.randint(0, 9) for _ in range(keys)]
    parts[generator.randrange(keys)] += 1
    return [F(part, sum(parts)) for part in parts]


def jacobian(a: list[F], t: F = F(1)) -> list[list[F]]:
    return [[(a[i] * (i == j) - a[i] * a[j]) / t for j in range(len(a))] for i in range(len(a))]


def is_positive_semidefinite(matrix: list[list[F]]) -> bool:
    """By symmetric elimination in rationals: no negative pivot, and no zero pivot with a rest in its row."""
    m = [row[:] for row in matrix]
    for k in range(len(m)):
        if m[k][k] < 0 or (m[k][k] == 0 and any(m[k][j] for j in range(k, len(m)))):
            return False
        if m[k][k] == 0:
            continue
        for i in range(k + 1, len(m)):
            factor = m[i][k] / m[k][k]
            m[i] = [x - factor * y for x, y in zip(m[i], m[k], strict=True)]
    return True


def shifted(scalar: F, matrix: list[list[F]]) -> list[list[F]]:
    """scalar I - matrix."""
    return [[scalar * (i == j) - x for j, x in enumerate(row)] for i, row in enumerate(matrix)]


def test_the_oracle_knows_definite_matrices() -> None:
    assert is_positive_semidefinite([[F(2), F(1)], [F(1), F(1, 2)]])
    assert not is_positive_semidefinite([[F(2), F(1)], [F(1), F(49, 100)]])
    assert not is_positive_semidefinite([[F(0), F(1)], [F(1), F(5)]])


def test_spectral_supremum_is_attained_at_one_half() -> None:
    for t in (sympy.Rational(1, 100), sympy.Integer(1), sympy.Rational(7, 3)):
        quarter = sympy.Rational(1, 4) / t
        eigenvalues = sympy.Matrix([[quarter, -quarter], [-quarter, quarter]]).eigenvals()
        assert eigenvalues == {sympy.Integer(0): 1, 1 / (2 * t): 1}
        norm = float(bounds.spectral_norm(tensor(0.5, 0.5), float(t)))
        assert norm == pytest.approx(float(1 / (2 * t)), rel=1e-14)
        assert norm == pytest.approx(float(bounds.spectral_norm_supremum(float(t))), rel=1e-14)


@pytest.mark.parametrize("seed", range(40))
def test_no_weights_beat_the_spectral_supremum(seed: int) -> None:
    """1/2 I - J and 2 max a(1-a) I - J are positive semidefinite, in rationals; rows of J by Gershgorin."""
    generator = random.Random(seed)
    a = rational_weights(generator, generator.randint(1, 7))
    j = jacobian(a)
    share = max(p * (1 - p) for p in a)
    assert all(sum(map(abs, row)) == 2 * p * (1 - p) for row, p in zip(j, a, strict=True))
    assert is_positive_semidefinite(shifted(F(1, 2), j))
    assert is_positive_semidefinite(shifted(2 * share, j))
    assert max(j[i][i] for i in range(len(a))) == share  # e_i J e_i, so ||J|| is at least that
    row = torch.tensor([float(p) for p in a], dtype=torch.float64)
    norm, slack = F(float(bounds.spectral_norm(row))), F(1, 10**13)
    assert is_positive_semidefinite(shifted(norm + slack, j))
    assert not is_positive_semidefinite(shifted(norm - slack, j))
    low, high = bounds.spectral_norm_bounds(row)
    assert float(low) == pytest.approx(float(share), rel=1e-14)
    assert float(high) == pytest.approx(float(2 * share), rel=1e-14)


def test_a_smaller_constant_would_be_false() -> None:
    """The elimination sees 1/2 - 10^-30 fail at (1/2, 1/2)."""
    j = jacobian([F(1, 2), F(1, 2)])
    assert is_positive_semidefinite(shifted(F(1, 2), j))
    assert not is_positive_semidefinite(shifted(F(1, 2) - F(1, 10**30), j))


@pytest.mark.parametrize("t", [F(1, 100), F(1, 4), F(1), F(30)])
def test_the_published_gradient_bound_is_false_at_equal_logits(t: F) -> None:
    """J (1, -1) = (1, -1)/(2T) at l = (0, 0): twice the published 1/(4T)."""
    j = jacobian([F(1, 2), F(1, 2)], t)
    image = [row[0] - row[1] for row in j]
    assert image == [1 / (2 * t), -1 / (2 * t)]
    claimed = bounds.spectral_norm_bound_paper(float(t))
    assert 1 / (2 * t) > 1 / (4 * t) >= F(float(claimed)) * F(999, 1000)


def test_the_published_gradient_bound_is_false_at_a_low_temperature() -> None:
    """l = (0, 0, -.03), T = .01: (1, -1, 0) is an eigenvector for 1/((2 + e^-3) T), which exceeds 25 and sqrt 2."""
    t = iv.mpf(1) / 100
    small = iv.exp(-3)
    equal, last = 1 / (2 + small), small / (2 + small)
    value = equal / t
    assert value.a > 48.7
    assert value.b < 48.9
    assert value.a > (1 / (4 * t)).b
    assert value.a > ROOT_2.b
    trace = (2 * equal * (1 - equal) + last * (1 - last)) / t  # the eigenvalues are 0, this one and the rest
    assert (trace - value).b < value.a
    row = torch.softmax(tensor(0.0, 0.0, -0.03) / 0.01, -1)
    norm = float(bounds.spectral_norm(row, 0.01))
    assert float(value.a) * (1 - 1e-13) <= norm <= float(value.b) * (1 + 1e-13)


def test_root_two_bounds_the_undivided_difference() -> None:
    """One-hot rows are sqrt 2 apart, and no rational rows are further."""
    generator = random.Random(0)
    for _ in range(200):
        keys = generator.randint(2, 6)
        a, b = rational_weights(generator, keys), rational_weights(generator, keys)
        assert sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) <= 2
    assert (F(1) - 0) ** 2 + (F(0) - 1) ** 2 == 2


def line_distance(a: list[F], x: list[F], inside: tuple[int, ...]) -> F:
    s = sum((a[i] * x[i] for i in inside), F(0))
    return sum((abs(a[i] * x[i] - s) for i in range(len(a)) if i not in inside), F(0))


def theorem_1_parts(a: list[F], x: list[F], inside: tuple[int, ...]) -> tuple[F, F, F]:
    """(1 - abar) d1, max|x| and the bracket."""
    outside = [i for i in range(len(a)) if i not in inside]
    mass = sum((a[i] for i in inside), F(0))
    d1 = max((abs(x[i] - x[j]) for i in outside for j in inside), default=F(0))
    return (1 - mass) * d1, max(abs(x[j]) for j in inside), mass * len(outside) - (1 - mass)


@pytest.mark.parametrize("seed", range(30))
def test_theorem_1_linear_is_true_in_rationals(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(10):
        keys = generator.randint(1, 7)
        a = sorted(rational_weights(generator, keys), reverse=True)
        x = [F(generator.randint(-30, 30), generator.randint(1, 7)) for _ in range(keys)]
        inside = tuple(range(generator.randint(1, keys)))
        near, longest, bracket = theorem_1_parts(a, x, inside)
        exact = near + longest * bracket
        assert line_distance(a, x, inside) <= exact
        shipped = bounds.distance_bound(tensor(*map(float, a)), tensor(*map(float, x)).unsqueeze(-1), len(inside))
        assert float(shipped) == pytest.approx(float(exact), rel=1e-12, abs=1e-13)
        same = [x[0]] * keys  # identical vectors: equality
        near, longest, bracket = theorem_1_parts(a, same, inside)
        assert line_distance(a, same, inside) == near + longest * bracket


def test_theorem_1_with_a_root_is_false_in_rationals() -> None:
    """L = 10, N = 1, a = (1/2, 1/18, ...), all x = 1: the distance is 4, the bracket 4, its root 2."""
    a, x = [F(1, 2)] + [F(1, 18)] * 9, [F(1)] * 10
    assert sum(a) == 1
    near, longest, bracket = theorem_1_parts(a, x, (0,))
    assert (near, longest, bracket) == (0, 1, 4)
    assert line_distance(a, x, (0,)) == 4 > math.isqrt(4)
    claimed = bounds.distance_bound_root_paper(tensor(*map(float, a)), torch.ones(10, 1, dtype=torch.float64), 1)
    assert float(claimed) == pytest.approx(2, rel=1e-12)


def test_theorem_2_upper_side_is_false_at_one_token() -> None:
    """s = y_1, so N_s/N = 1 for every r; xi = 0, and exp(-r^2/2) < 1."""
    for r in (F(1, 100), F(1, 2), F(1), F(2)):
        square = iv.mpf(r.numerator) ** 2 / iv.mpf(r.denominator) ** 2
        claimed = iv.exp(-square / 2)
        assert claimed.b < 1
        for weight in (0.25, 1.0):
            shipped = float(bounds.sphere_separability_bounds_paper(tensor(weight), float(r), 0.0)[1])
            assert float(claimed.a) * (1 - 1e-14) <= shipped <= float(claimed.b) * (1 + 1e-14)
            ball = bounds.separability(tensor(weight), tensor([3.0, 4.0]), 1, radius=float(r))
            assert float(ball.ratio) == 1


def moved(base: list[F], factor: list[F]) -> F:
    """||softmax(l + e) - softmax(l)||^2, e^l and e^e given as rationals."""
    before = [b / sum(base) for b in base]
    scaled = [b * f for b, f in zip(base, factor, strict=True)]
    after = [b / sum(scaled) for b in scaled]
    return sum(((p - q) ** 2 for p, q in zip(after, before, strict=True)), F(0))


def tanh_bound(factor: list[F], u: F) -> F:
    """2 tanh^2(spread/4) with e^(spread/2) = u, so that u^2 = max factor/min factor."""
    assert u * u == max(factor) / min(factor)
    return 2 * ((u - 1) / (u + 1)) ** 2


@pytest.mark.parametrize("u", [F(101, 100), F(3, 2), F(7), F(1000)])
def test_tanh_bound_equality_and_strictness(u: F) -> None:
    """Two keys, e = (ln u, -ln u): equality at l = -e/2, strict at every other l."""
    factor = [u, 1 / u]
    bound = tanh_bound(factor, u)
    # l = -e/2 means e^l = (u^-1/2, u^1/2), up to a common factor (1, u).
    assert moved([F(1), u], factor) == bound
    for v in (F(99, 100), F(101, 100), F(1, 5), F(9)):
        assert moved([v, u], factor) < bound
    shipped = bounds.change_bound(tensor(math.log(u), -math.log(u)))
    assert float(shipped) ** 2 == pytest.approx(float(bound), rel=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_tanh_bound_in_rationals(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(20):
        keys = generator.randint(2, 6)
        roots = [F(generator.randint(1, 20), generator.randint(1, 20)) for _ in range(keys)]
        base = [F(generator.randint(1, 99), generator.randint(1, 9)) for _ in range(keys)]
        factor = [root * root for root in roots]
        bound = tanh_bound(factor, max(roots) / min(roots))
        assert moved(base, factor) <= bound <= 2
        if keys > 2:
            assert moved(base, factor) < bound or bound == 0  # a third key takes some of the mass


def test_tanh_bound_in_the_limit_is_the_derivative_bound() -> None:
    """sqrt2 tanh(||e||/(2 sqrt2 T)) <= ||e||/(2T), by intervals."""
    for numerator in (1, 10, 500):
        size = iv.mpf(numerator) / 100
        inner = iv.exp(size / ROOT_2)  # tanh(y) = (e^2y - 1)/(e^2y + 1)
        bound = ROOT_2 * (inner - 1) / (inner + 1)
        assert bound.b <= (size / 2).a
        assert bound.b < ROOT_2.a
        shipped = float(bounds.change_bound_by_norm(numerator / 100))
        assert float(bound.a) * (1 - 1e-13) <= shipped <= float(bound.b) * (1 + 1e-13)


def expected_line_distance(y: list[F], n: int) -> F:
    ones = [F(1)] * len(y)
    all_of_them = subsets(len(y), n)
    return sum((line_distance(ones, y, inside) for inside in all_of_them), F(0)) / len(all_of_them)


def jensen_side(y: list[F], n: int) -> F:
    """((L-N)/L) sum |y_i - N/(L-1) sum_{j != i} y_j|."""
    keys, z = len(y), sum(y, F(0))
    return F(keys - n, keys) * sum((abs(v - F(n, keys - 1) * (z - v)) for v in y), F(0))


def test_theorem_1_for_random_sets_has_the_wrong_direction() -> None:
    """y = (0, 1, -1), N = 1: the claimed upper bound is 2, the mean is 8/3."""
    y = [F(0), F(1), F(-1)]
    assert expected_line_distance(y, 1) == F(8, 3)
    assert jensen_side(y, 1) == 2
    claimed = bounds.expected_distance_bound_paper(tensor(0.5, 0.25, 0.25), tensor([0.0], [4.0], [-4.0]), 1)
    assert float(claimed) == pytest.approx(2, rel=1e-14)


@pytest.mark.parametrize("seed", range(15))
def test_sandwich_of_the_expected_distance_in_rationals(seed: int) -> None:
    """Left by rationals; right by intervals, since it has roots."""
    generator = random.Random(seed)
    keys = generator.randint(2, 6)
    y = [F(generator.randint(-9, 9), generator.randint(1, 5)) for _ in range(keys)]
    for n in range(1, keys + 1):
        mean = expected_line_distance(y, n)
        assert jensen_side(y, n) <= mean
        if n == keys - 1:
            assert jensen_side(y, n) == mean
        z, squares, total = sum(y, F(0)), sum((v * v for v in y), F(0)), iv.mpf(0)
        for v in y:
            centre = (v - F(n, keys - 1) * (z - v)) ** 2
            factor = F(n * (keys - 1 - n), (keys - 1) * max(keys - 2, 1))
            square = centre + max(factor * (squares - v * v - (z - v) ** 2 / (keys - 1)), F(0))
            total += iv.sqrt(iv.mpf(square.numerator) / iv.mpf(square.denominator))
        upper = total * (keys - n) / keys
        assert iv.mpf(mean.numerator).a / mean.denominator <= float(upper.b) * (1 + 1e-14)
        weights = torch.full((keys,), 1 / keys, dtype=torch.float64)
        shipped = bounds.expected_distance_bounds(weights, keys * tensor(*map(float, y)).unsqueeze(-1), n)
        assert float(shipped[0]) == pytest.approx(float(jensen_side(y, n)), rel=1e-12, abs=1e-12)
        assert float(shipped[1]) == pytest.approx(float(upper.mid), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_second_moment_of_the_net_distance_in_rationals(seed: int) -> None:
    generator = random.Random(seed)
    keys = generator.randint(2, 6)
    y = [F(generator.randint(-9, 9), generator.randint(1, 5)) for _ in range(keys)]
    z, q = sum(y, F(0)), sum((v * v for v in y), F(0))
    for n in range(1, keys + 1):
        nets = [(z - 2 * sum((y[i] for i in inside), F(0))) ** 2 for inside in itertools.combinations(range(keys), n)]
        pairs = F(keys * (keys - 1))
        formula = (1 - F(4 * n, keys) + 4 * n * (n - 1) / pairs) * z * z + 4 * n * (keys - n) / pairs * q
        assert formula == sum(nets, F(0)) / len(nets)


def test_weight_and_mass_bounds_are_reached_in_rationals() -> None:
    """e^(R/T) = 5, L = 7: two-level rows."""
    rho, keys = F(5), 7
    for n in range(1, keys + 1):
        row = [rho] * n + [F(1)] * (keys - n)
        assert n * rho / sum(row) == F(n) / (n + (keys - n) / rho)
        shipped = bounds.top_mass_bounds(math.log(5), keys, n)[1]
        assert float(shipped) == pytest.approx(float(n * rho / sum(row)), rel=1e-14)
    row = [rho] + [F(1)] * 5  # a share 1/(1 + rho) at the top
    weights = [v / sum(row) for v in row]
    assert 1 / sum(w * w for w in weights) == 4 * 6 * rho / (1 + rho) ** 2
    shipped = bounds.effective_number_bound(math.log(5), 6)
    assert float(shipped) == pytest.approx(float(4 * 6 * rho / (1 + rho) ** 2), rel=1e-14)
