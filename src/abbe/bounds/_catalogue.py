"""Every statement of the theory, ours and those of arXiv 2508.17821: its record, what draws its inputs, both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from ..normalizers import normalizer
from . import _distance as distance
from . import _gradient as gradient
from . import _separability as separability
from . import _weights as weights
from ._checks import selected_set

__all__ = ["Point", "Sizes", "Statement", "catalogue"]

Status = Literal["proved", "refuted", "conditional", "approximation"]
Sizes = Mapping[str, int]
T = TypeVar("T")

PAPER = "arXiv 2508.17821"
OURS = "this project"
ALSO = f"{OURS}; independently "  # found by others, too


def sized(names: str, *of_points: tuple[int, ...]) -> tuple[Sizes, ...]:
    return tuple(dict(zip(names.split(), numbers, strict=True)) for numbers in of_points)


KEYS = sized("keys", (2,), (3,), (5,), (16,), (64,))
COUNTED = sized("keys count", (2, 1), (3, 1), (3, 2), (8, 3), (32, 4), (32, 31))
PLACED = sized("keys count width", (2, 1, 1), (3, 1, 2), (4, 2, 2), (7, 3, 3), (8, 6, 2))
SMALL = sized("keys count width", (2, 1, 1), (3, 1, 1), (4, 2, 2), (6, 2, 2), (6, 5, 2))
SPHERE = sized("count width", (1, 3), (2, 3), (5, 8), (16, 64))


@dataclass(frozen=True)
class Point:
    """A batch of inputs at which a statement is tried.

    Attributes:
        values: tensors that a search may move: "logits", "log_temperature" and others by name.
        sizes: whole numbers that stay: "keys", "count", "width".
    """

    values: dict[str, Tensor]
    sizes: Sizes

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    @property
    def temperature(self) -> Tensor:
        """T > 0, one per row of the batch."""
        return self.values["log_temperature"].exp()

    @property
    def weights(self) -> Tensor:
        """Softmax of the logits at the temperature, (batch, keys)."""
        return torch.softmax(self["logits"] / self.temperature.unsqueeze(-1), -1)


Sampler = Callable[[torch.Generator, int, Sizes], Point]
Quantity = Callable[[Point], Tensor]
_mean: Quantity = itemgetter("mean")


@dataclass(frozen=True)
class Statement:
    """One statement of the theory: `measured` <= `bound` (side "upper"), >= ("lower") or = ("equal").

    Attributes:
        name: used in documents and by `abbe verify`.
        section: weights, distance, separability, gradient or capacity.
        text: the statement in plain characters.
        latex: the statement as a formula.
        source: where it is from.
        assumptions: under which it holds.
        status: "proved", "refuted", "conditional" (holds under stated assumptions that real models need not meet) or
            "approximation".
        tight: whether equality is reached or approached.
        sampler: draws a batch of points.
        measured: the quantity that is bounded.
        bound: its bound.
        side: on which side the bound lies.
        sizes: to try it at.
        searchable: whether a gradient search for counterexamples makes sense.
        noise: standard error of `measured`, if that is simulated.
        tolerance: rounding error allowed in the ratio.
    """

    name: str
    section: str
    text: str
    latex: str
    source: str
    assumptions: str
    status: Status
    tight: bool
    sampler: Sampler
    measured: Quantity
    bound: Quantity
    side: Literal["upper", "lower", "equal"] = "upper"
    sizes: tuple[Sizes, ...] = ()
    searchable: bool = True
    noise: Quantity | None = None
    tolerance: float = 1e-9  # of the ratio: float64 rounding of sums over some thousand keys, with room to spare

    def ratio(self, point: Point) -> Tensor:
        """How close the points come to the bound: above 1 the statement does not hold there, 1 is equality.

        measured/bound for an upper bound, bound/measured for a lower one. A simulated quantity gets the benefit of four
        standard errors.

        Args:
            point: a batch of inputs, as drawn by `statement.sampler(generator, trials, sizes)`.

        Returns:
            One ratio per input.

        Examples:
            >>> statement = abbe.bounds.catalogue()[0]
            >>> point = statement.sampler(torch.Generator().manual_seed(0), 100, {"keys": 8})
            >>> bool((statement.ratio(point) <= 1 + statement.tolerance).all())
            True
        """
        measured, bound = self.measured(point), self.bound(point)
        slack = 4 * self.noise(point) if self.noise is not None else 0.0
        tiny = 1e-6  # below this both sides are rounding
        over = _quotient(measured - slack + tiny, bound + tiny)
        under = _quotient(bound + tiny, measured + slack + tiny)
        if self.side == "equal":
            return torch.maximum(over, under)
        return over if self.side == "upper" else under


def _quotient(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole; any part above a whole <= 0 counts as far too much (1e6: finite, so that a search can continue)."""
    below = whole <= 0  # False for NaN, which must propagate
    return torch.where(below, torch.where(part <= whole, 0.0, 1e6), part / torch.where(below, 1.0, whole))


def entries(section: str, **shared: Any) -> Callable[..., Statement]:
    """A maker of the entries of a table, with the fields that they share; an entry names the others."""

    def entry(name: str, text: str, latex: str, measured: Quantity, bound: Quantity, **other: Any) -> Statement:
        fields = {"source": OURS, "status": "proved", "tight": True, **shared, **other}
        return Statement(name, section, text, latex, measured=measured, bound=bound, **fields)

    return entry


def keys_of(point: Point) -> int:
    return point.sizes["keys"]


def count_of(point: Point) -> int:
    return point.sizes["count"]


def placed(function: Callable[..., T]) -> Callable[[Point], T]:
    """A function of (weights, vectors, count) as a quantity of a point."""
    return lambda point: function(point.weights, point["vectors"], count_of(point))


def normal(generator: torch.Generator, *shape: int, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


def rows(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Logits of many spreads and shapes (including two-level rows), temperatures from 0.05 to 20."""
    keys = sizes["keys"]
    spread = 10 ** (2 * torch.rand(trials, 1, generator=generator, dtype=torch.float64) - 1)
    logits = spread * normal(generator, trials, keys)
    two_level = torch.rand(trials, 1, generator=generator, dtype=torch.float64) < 0.3
    level = torch.rand(trials, 1, generator=generator, dtype=torch.float64)
    steps = spread * (torch.rand(trials, keys, generator=generator, dtype=torch.float64) < level).double()
    log_temperature = (6 * torch.rand(trials, generator=generator, dtype=torch.float64) - 3).clamp(-3, 3)
    return Point({"logits": torch.where(two_level, steps, logits), "log_temperature": log_temperature}, sizes)


def rows_and_vectors(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Rows with token vectors: isotropic, or around a common direction."""
    point = rows(generator, trials, sizes)
    shape = trials, sizes["keys"], sizes["width"]
    common = 3 * torch.rand(trials, 1, 1, generator=generator, dtype=torch.float64)
    vectors = normal(generator, *shape) + common * normal(generator, trials, 1, sizes["width"])
    return Point({**point.values, "vectors": vectors}, sizes)


def _spread(point: Point) -> Tensor:
    return point["logits"].amax(-1) - point["logits"].amin(-1)


def _deficit(point: Point) -> Tensor:
    """ln L - H as the mean of w ln w - (w - 1), w = L a: terms >= 0, so a small deficit keeps its digits."""
    w = keys_of(point) * point.weights
    # Near 1 the logarithm is that of 1 + over, which keeps the digits of over; below 1e-300 w ln w is 0.
    small, over = w < 0.5, w - 1
    log = torch.where(small, torch.log(torch.where(w > 1e-300, w, 1.0)), torch.log1p(torch.where(small, 0.0, over)))
    return (w * log - over).mean(-1)


def _largest_softplus_weight(point: Point) -> Tensor:
    shaped = torch.nn.functional.softplus(point["logits"])
    return (shaped / shaped.sum(-1, keepdim=True)).amax(-1)


def _softplus_ends(point: Point) -> tuple[Tensor, Tensor]:
    shaped = torch.nn.functional.softplus(point["logits"])
    return shaped.amin(-1), shaped.amax(-1)


def _odds(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    return Point({"log_temperature": normal(generator, trials), "odds": normal(generator, trials, spread=3.0)}, sizes)


def _winners_mass_by_softmax(point: Point) -> Tensor:
    """Build the row that the margin describes, and measure it."""
    keys, count = keys_of(point), count_of(point)
    error = torch.sigmoid(-point["odds"])
    margin = weights.margin_needed(keys, error, point.temperature, count)
    logits = torch.where(torch.arange(keys, device=margin.device) < count, margin.unsqueeze(-1), 0.0)
    return torch.softmax(logits / point.temperature.unsqueeze(-1), -1)[..., :count].sum(-1)


_weight = entries("weights", assumptions="softmax", sampler=rows, sizes=KEYS)

WEIGHTS = (
    _weight("weight-upper", "a_i <= 1/(1 + (L-1) e^{(l_min - l_i)/T})",
           r"a_i \le \frac{1}{1+(L-1)e^{(l_{\min}-l_i)/T}}", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[1].amax(-1)),
    _weight("weight-lower", "a_i >= 1/(1 + (L-1) e^{(l_max - l_i)/T})",
           r"a_i \ge \frac{1}{1+(L-1)e^{(l_{\max}-l_i)/T}}", lambda p: p.weights.amin(-1),
           lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[0].amin(-1), side="lower"),
    _weight("vanishing-paper", "a_i <= e^{2D/T}/L, logits in [-D, D] (Corollary 1)",
           r"a_i \le e^{2D/T}/L", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_range_paper(p["logits"].abs().amax(-1), keys_of(p), p.temperature)[1],
           source=PAPER, assumptions="softmax, |l| <= D", tight=False),
    _weight("vanishing", "a_i <= 1/(1 + (L-1) e^{-R/T}), R = max l - min l",
           r"a_i \le \frac{1}{1+(L-1)e^{-R/T}}", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_range(_spread(p), keys_of(p), p.temperature)[1]),
    _weight("general-weight-paper", "F(l_i)/sum F <= (max F/min F)/L (Lemma 1), tried with F = softplus",
           r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{\max F}{\min F}\frac1L", _largest_softplus_weight,
           lambda p: weights.general_weight_range_paper(*_softplus_ends(p), keys_of(p))[1],
           source=PAPER, assumptions="F continuous and positive, L not in F", tight=False),
    _weight("general-weight", "F(l_i)/sum F <= 1/(1 + (L-1) min F/max F), tried with F = softplus",
           r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{1}{1+(L-1)\min F/\max F}", _largest_softplus_weight,
           lambda p: weights.general_weight_range(*_softplus_ends(p), keys_of(p))[1], assumptions="F positive"),
    _weight("top-mass", "mass of the N largest <= N/(N + (L-N) e^{-R/T})",
           r"\bar a_N \le \frac{N}{N+(L-N)e^{-R/T}}", lambda p: weights.top_mass(p.weights, count_of(p)),
           lambda p: weights.top_mass_bounds(_spread(p), keys_of(p), count_of(p), p.temperature)[1], sizes=COUNTED),
    _weight("entropy-deficit", "ln L - H <= ln S(e^{R/T}), S the Specht ratio", r"\ln L - H \le \ln S(e^{R/T})",
           _deficit, lambda p: weights.entropy_deficit_bound(_spread(p), p.temperature),
           sizes=(*KEYS, {"keys": 400})),
    _weight("entropy-deficit-loose", "ln L - H <= R^2/(8 T^2)", r"\ln L - H \le \frac{R^2}{8T^2}",
           _deficit, lambda p: weights.entropy_deficit_bound_loose(_spread(p), p.temperature)),
    _weight("effective-number", "1/sum a^2 >= 4 L rho/(1 + rho)^2, rho = e^{R/T}",
           r"\frac{1}{\sum a_i^2} \ge \frac{4L\rho}{(1+\rho)^2}", lambda p: weights.effective_number(p.weights),
           lambda p: weights.effective_number_bound(_spread(p), keys_of(p), p.temperature), side="lower"),
    _weight("log-margin", "N equal winners at margin T ln((L-N)(1-e)/(N e)) hold a mass of 1 - e",
           r"\delta = T\ln\frac{(L-N)(1-\varepsilon)}{N\varepsilon} \iff \bar a_N = 1-\varepsilon",
           _winners_mass_by_softmax, lambda p: torch.sigmoid(p["odds"]),
           assumptions="softmax, equal others", sampler=_odds, side="equal", sizes=COUNTED,
           source=ALSO + "arXiv 2512.13898; its growth like ln L as a critical scale: "
           "arXiv 2510.05554, arXiv 2605.12697"),
    _weight("entmax-top-weight",
           "alpha-entmax, k keys within 1/(alpha-1) of the top: largest weight >= 1/k at every L",
           r"p_{\max} \ge 1/k", lambda p: normalizer("entmax:alpha=1.5")(p["logits"]).amax(-1),
           lambda p: 1 / weights.entmax_contenders(p["logits"], 1.5).double(),
           assumptions="alpha-entmax, alpha > 1 (tried at 1.5)", side="lower", searchable=False),
    _weight("entmax-entropy", "alpha-entmax, k keys within the gap: H <= ln k at every L",
           r"H(p) \le \ln k", lambda p: weights.entropy(normalizer("sparsemax")(p["logits"])) + 1,
           lambda p: weights.entmax_contenders(p["logits"], 2.0).double().log() + 1,
           assumptions="alpha-entmax, alpha > 1 (tried at 2)", searchable=False),
)  # fmt: skip


_expected_distance = placed(distance.expected_distance_exact)


def _mean_square_net_distance(point: Point) -> Tensor:
    a, x = point.weights, point["vectors"]
    return distance.mean_over_subsets(a, count_of(point), lambda chosen: distance.net_distance(a, x, chosen) ** 2)


def _growing(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Equal weights, token vectors around a common direction, for the claim about N proportional to L."""
    keys = sizes["keys"]
    vectors = normal(generator, trials, keys, sizes["width"]) + 1.0
    flat = torch.zeros(trials, keys, dtype=torch.float64)
    return Point({"logits": flat, "log_temperature": flat[:, 0], "vectors": vectors}, sizes)


def _of_the_first(point: Point, keys: int) -> Tensor:
    """Distance of the first quarter of the first `keys` tokens, at equal weights."""
    x = point["vectors"][..., :keys, :]
    a = x.new_full(x.shape[:-1], 1 / keys)
    return distance.distance(a, x, keys // 4)


_selected = entries("distance", sampler=rows_and_vectors, sizes=PLACED)
_random = entries("distance", assumptions="uniform random N-subset", sampler=rows_and_vectors, sizes=SMALL)

DISTANCE = (
    _selected("theorem-1", "d <= (1 - abar) d1 + max||x|| (abar (L-N) - (1 - abar)) (Theorem 1(1), linear)",
              r"\tilde d \le (1-\bar a_N)d_1 + \max_{I_N}\|x_j\|\,(\bar a_N(L-N)-(1-\bar a_N))",
              placed(distance.distance), placed(distance.distance_bound),
              source=PAPER, assumptions="weights sum to 1, top-N set"),
    _selected("theorem-1-root",
              "d <= (1 - abar) d1 + max||x|| sqrt(abar (L-N) - (1 - abar)) (Theorem 1(1) with a root)",
              r"\tilde d \le (1-\bar a_N)d_1 + \max_{I_N}\|x_j\|\sqrt{\bar a_N(L-N)-(1-\bar a_N)}",
              placed(distance.distance), placed(distance.distance_bound_root_paper),
              source=PAPER, assumptions="weights sum to 1, top-N set", status="refuted", tight=False),
    _random("theorem-1-random-paper",
            "E d <= ((L-N)/L) sum ||y_i - N/(L-1) sum_{j!=i} y_j|| for a random N-subset "
            "(Theorem 1(2) without epsilon)",
            r"\mathbb E\,\tilde d \le \frac{L-N}{L}\sum_i\Big\|y_i-\frac{N}{L-1}\sum_{j\ne i}y_j\Big\|",
            _expected_distance, placed(distance.expected_distance_bound_paper),
            source=PAPER, status="refuted", tight=False),
    _random("expected-distance-upper", "E d <= ((L-N)/L) sum sqrt(||mu_i||^2 + V_i)",
            r"\mathbb E\,\tilde d \le \frac{L-N}{L}\sum_i\sqrt{\|\mu_i\|^2+V_i}", _expected_distance,
            lambda p: placed(distance.expected_distance_bounds)(p)[1]),
    _random("expected-distance-lower", "E d >= ((L-N)/L) sum ||mu_i||",
            r"\mathbb E\,\tilde d \ge \frac{L-N}{L}\sum_i\|\mu_i\|", _expected_distance,
            lambda p: placed(distance.expected_distance_bounds)(p)[0], side="lower"),
    _random("expected-distance-ceiling", "E d <= (N + 1) M for every L, M = max ||x||",
            r"\mathbb E\,\tilde d \le (N+1)M", _expected_distance,
            lambda p: distance.expected_distance_ceiling(count_of(p), distance.norm(p["vectors"]).amax(-1)),
            assumptions="uniform random N-subset, weights sum to 1", tight=False),
    _selected("distance-sandwich-upper", "d <= (L-N) ||s|| + sum_out ||y_i||",
              r"\tilde d \le (L-N)\|s\| + \sum_{i\notin I_N}\|y_i\|", placed(distance.distance),
              lambda p: placed(distance.distance_sandwich)(p)[1], assumptions="any set"),
    _selected("distance-sandwich-lower", "d >= (L-N) ||s|| - sum_out ||y_i||",
              r"\tilde d \ge (L-N)\|s\| - \sum_{i\notin I_N}\|y_i\|", placed(distance.distance),
              lambda p: placed(distance.distance_sandwich)(p)[0], assumptions="any set", side="lower"),
    _selected("net-distance", "||sum_out y - s|| <= (1 - abar) d1 + |2 abar - 1| max||x||",
              r"\Big\|\sum_{i\notin I_N}y_i-s\Big\| \le (1-\bar a_N)d_1+|2\bar a_N-1|\max_{I_N}\|x_j\|",
              placed(distance.net_distance), placed(distance.net_distance_bound), assumptions="weights sum to 1"),
    _random("net-distance-moment",
            "E||net||^2 = [1 - 4N/L + 4N(N-1)/(L(L-1))] ||z||^2 + [4N(L-N)/(L(L-1))] Q",
            r"\mathbb E\|\cdot\|^2=\Big[1-\tfrac{4N}{L}+\tfrac{4N(N-1)}{L(L-1)}\Big]\|z\|^2+\tfrac{4N(L-N)}{L(L-1)}Q",
            _mean_square_net_distance, placed(distance.expected_net_distance_squared),
            side="equal", searchable=False, tolerance=1e-6),  # a mean of squares over all subsets, equal to rounding
    _selected("collapse-paper", "for N = L/4 the distance falls as L grows: d(16 keys) <= d(8 keys)",
              r"N\propto L \Rightarrow \tilde d\to 0", lambda p: _of_the_first(p, 16), lambda p: _of_the_first(p, 8),
              source=PAPER, assumptions="none stated", status="refuted", tight=False, sampler=_growing,
              sizes=({"keys": 16, "count": 4, "width": 1},), searchable=False),
)  # fmt: skip


_DRAWS = 4000  # of a simulated share: a standard error below 0.01


def _on_the_sphere(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Selected weights, a radius, and a simulated E N_s/N with its standard error, for some trials."""
    count = max(10, min(trials // 20, 100))
    return Point(dict(_simulated(generator.initial_seed(), count, sizes["count"], sizes["width"])), sizes)


@lru_cache(maxsize=32)  # four statements share the draws
def _simulated(seed: int, trials: int, count: int, width: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(2, trials, generator=generator, dtype=torch.float64)
    a = torch.softmax(normal(generator, trials, count), -1) * uniform[0].unsqueeze(-1)
    radius = (a**2).sum(-1).sqrt() * (0.3 + 1.7 * uniform[1])
    hits = []
    for row, r in zip(a, radius, strict=True):
        x = normal(generator, _DRAWS, count, width)
        y = row.unsqueeze(-1) * x / x.norm(dim=-1, keepdim=True)
        far = (y - y.sum(-2, keepdim=True)).norm(dim=-1)
        hits.append((far <= r * (1 + 1e-12)).double().mean(-1))  # on the sphere counts as inside, despite rounding
    shares = torch.stack(hits)
    # No hits at all, or only hits, are still uncertain by about 1/draws.
    error = shares.std(-1) / math.sqrt(_DRAWS) + 1 / _DRAWS
    return {"weights": a, "radius": radius, "mean": shares.mean(-1), "error": error}


def _as_printed(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds_paper(point["weights"], point["radius"], 0.0)


def _corrected(point: Point) -> tuple[Tensor, Tensor]:
    return separability.sphere_separability_bounds(point["weights"], point["radius"], point.sizes["width"])


def _sphere_estimate(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    trials = max(20, min(trials // 10, 100))
    keys, width, count = sizes["keys"], sizes["width"], sizes["count"]
    x = normal(generator, trials, keys, width)
    a = torch.full((trials, keys), 1 / keys, dtype=torch.float64)
    chosen = (torch.arange(keys) < count).expand(trials, keys)
    ratio = separability.separability(a, x / x.norm(dim=-1, keepdim=True), chosen).ratio.double()
    return Point({"mean": ratio.mean().unsqueeze(0), "error": (ratio.std() / math.sqrt(trials)).unsqueeze(0)}, sizes)


def _estimate(point: Point) -> Tensor:
    size = count_of(point), keys_of(point), point.sizes["width"]
    return separability.sphere_separability_estimate(*size).reshape(1).to(point["mean"])


_sphere = entries("separability", tight=False, searchable=False, noise=lambda p: p["error"], sizes=SPHERE,
                 assumptions="vectors iid uniform on a sphere, fixed radius", sampler=_on_the_sphere)  # fmt: skip

SEPARABILITY = (
    _sphere("theorem-2-lower", "E N_s/N >= 1 - sum xi_i/(N r) (Theorem 2, left side)",
           r"\mathbb E\,N_s/N \ge 1-\frac{\sum\xi_i}{Nr}", _mean, lambda p: _as_printed(p)[0],
           source=PAPER, side="lower"),
    _sphere("theorem-2-upper", "E N_s/N <= (1/N) sum exp(-(xi_i - r)^2/(2 M^2)) (Theorem 2, right side)",
           r"\mathbb E\,N_s/N \le \frac1N\sum_i e^{-(\xi_i-r)^2/(2M^2)}", _mean, lambda p: _as_printed(p)[1],
           source=PAPER, status="refuted"),
    _sphere("sphere-lower", "E N_s/N >= mean of 1 - min{v_i/r^2, W_i/(W_i + (r^2 - v_i)^2)} where r^2 > v_i",
           r"P_i \ge 1-\min\{v_i/r^2,\,W_i/(W_i+(r^2-v_i)^2)\}", _mean, lambda p: _corrected(p)[0], side="lower"),
    _sphere("sphere-upper", "E N_s/N <= mean of W_i/(W_i + (v_i - r^2)^2) where r^2 < v_i",
           r"P_i \le W_i/(W_i+(v_i-r^2)^2)", _mean, lambda p: _corrected(p)[1]),
    _sphere("sphere-estimate", "E N_s/N is about E Phi(sqrt(d/N) - max of L-N normals), within 10 %",
           r"\mathbb E\,N_s/N \approx \mathbb E\,\Phi(\sqrt{d/N}-g_{L-N})", _mean, _estimate,
           assumptions="equal weights, vectors uniform on a sphere", status="approximation",
           sampler=_sphere_estimate, side="equal", tolerance=0.1,
           sizes=sized("keys count width", (128, 8, 96), (256, 16, 96))),
    _sphere("eighty-percent-paper", "at most 80 % of the selected tokens are distinguishable", r"N_s/N \le 0.8",
           lambda p: separability.separability(p.weights, p["vectors"], count_of(p)).ratio.double(),
           lambda p: p.weights.new_full(p.weights.shape[:-1], 0.8, dtype=torch.float64), source=PAPER,
           assumptions="an observation on GPT-2", status="refuted", sampler=rows_and_vectors, sizes=PLACED,
           noise=None),
)  # fmt: skip


_FAMILIES: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "softplus": torch.nn.functional.softplus,
    "softplus^3": lambda x: torch.nn.functional.softplus(x) ** 3,
    "1+elu": lambda x: 1 + torch.nn.functional.elu(x),
    "x^2+1": lambda x: x**2 + 1,
}


def _log_slope(family: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(log F)' at every logit, as a function that can itself be differentiated."""
    free = x if x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(torch.log(family(free)).sum(), free, create_graph=True)
    return slope if x.requires_grad else slope.detach()


def _general_norm(family: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Spectral norm of the Jacobian of F/sum F."""
    shaped = family(logits)
    w = shaped / shaped.sum(-1, keepdim=True)
    jacobian = (torch.diag_embed(w) - w.unsqueeze(-1) * w.unsqueeze(-2)) * _log_slope(family, logits).unsqueeze(-2)
    return spectral(jacobian)


def spectral(matrix: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(matrix, 2)
    return norm


def _moderate(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Logits of moderate spread around a common level, which matters to maps that are not shift invariant."""
    level = normal(generator, trials, 1, spread=4.0)
    return Point({"logits": level + normal(generator, trials, sizes["keys"], spread=2.0)}, sizes)


def _moved(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    point = rows(generator, trials, sizes)
    size = 10 ** (4 * torch.rand(trials, 1, generator=generator, dtype=torch.float64) - 3)
    return Point({**point.values, "change": size * normal(generator, trials, sizes["keys"])}, sizes)


def _movement(point: Point) -> Tensor:
    t = point.temperature.unsqueeze(-1)
    return distance.norm(
        torch.softmax((point["logits"] + point["change"]) / t, -1) - torch.softmax(point["logits"] / t, -1)
    )


def _of_row(function: Callable[..., T]) -> Callable[[Point], T]:
    """A function of (weights, temperature) as a quantity of a point."""
    return lambda point: function(point.weights, point.temperature)


_sensitivity = entries("gradient", assumptions="softmax", sampler=rows, sizes=KEYS)


def _log_derivative(name: str, family: Callable[[Tensor], Tensor]) -> Statement:
    return _sensitivity(
        f"log-derivative-{name}", f"||J_F||_2 <= (1/2) max |(log F)'|, F = {name}",
        r"\|J_F\|_2 \le \tfrac12\max|(\log F)'|", lambda p: _general_norm(family, p["logits"]),
        lambda p: gradient.log_derivative_bound(_log_slope(family, p["logits"]).abs().amax(-1)),
        assumptions="F positive and differentiable", sampler=_moderate, sizes=({"keys": 2}, {"keys": 6}),
    )  # fmt: skip


def _constant(spec: str) -> Statement:
    """Lipschitz constant of a normalizer as a statement."""
    tested = normalizer(spec)
    return _sensitivity(
        f"lipschitz-{spec.replace(':', '-').replace('=', '')}", f"sup ||J||_2 of {spec} is its lipschitz(keys)",
        rf"\sup\|J\|_2,\ \text{{{spec}}}", lambda p: spectral(tested.jacobian(p["logits"])),
        lambda p: p["logits"].new_full(p["logits"].shape[:-1], tested.lipschitz(keys_of(p)), dtype=torch.float64),
        # The Jacobians of entmax come from thresholds: some digits of the ratio are lost.
        assumptions=spec, sampler=_moderate, sizes=({"keys": 2}, {"keys": 3}, {"keys": 12}), tolerance=1e-8,
    )  # fmt: skip


GRADIENT = (
    _sensitivity("largest-entry", "max |J_ij| <= 1/(4T)", r"\max_{ij}|J_{ij}| \le \frac{1}{4T}",
           _of_row(gradient.largest_entry), lambda p: 0.25 / p.temperature),
    _sensitivity("spectral", "||J||_2 <= 1/(2T)", r"\|J\|_2 \le \frac{1}{2T}",
           _of_row(gradient.spectral_norm), lambda p: gradient.spectral_norm_supremum(p.temperature),
           source=ALSO + "arXiv 2510.23012"),
    _sensitivity("spectral-paper", "||J||_2 <= min{1/(4T), sqrt 2} (Corollary 3)", r"\|J\|_2 \le \min\{1/(4T),\sqrt2\}",
           _of_row(gradient.spectral_norm), lambda p: gradient.spectral_norm_bound_paper(p.temperature),
           source=PAPER, status="refuted", tight=False),
    _sensitivity("spectral-row-upper", "||J||_2 <= 2 max a(1-a)/T", r"\|J\|_2 \le 2\max_i a_i(1-a_i)/T",
           _of_row(gradient.spectral_norm), lambda p: _of_row(gradient.spectral_norm_bounds)(p)[1]),
    _sensitivity("spectral-row-lower", "||J||_2 >= max a(1-a)/T", r"\|J\|_2 \ge \max_i a_i(1-a_i)/T",
           _of_row(gradient.spectral_norm), lambda p: _of_row(gradient.spectral_norm_bounds)(p)[0],
           tight=False, side="lower"),
    _sensitivity("frobenius", "||J||_F <= sqrt(p2 (1 - p2))/T <= 1/(2T)", r"\|J\|_F \le \sqrt{p_2(1-p_2)}/T",
           _of_row(gradient.frobenius_norm), _of_row(gradient.frobenius_norm_bound)),
    _sensitivity("one-norm", "||J||_{1->1} <= 1/(2T)", r"\|J\|_{1\to1} \le \frac{1}{2T}",
           _of_row(gradient.one_norm), lambda p: 0.5 / p.temperature, source=ALSO + "arXiv 2510.23012"),
    _sensitivity("inf-to-one", "||J||_{inf->1} <= 1/T", r"\|J\|_{\infty\to1} \le \frac1T",
           _of_row(gradient.inf_to_one_norm), lambda p: gradient.inf_to_one_supremum(p.temperature),
           sizes=KEYS[:3], source=ALSO + "arXiv 2602.18849"),
    _sensitivity("change", "||softmax((l+e)/T) - softmax(l/T)|| <= sqrt2 tanh((max e - min e)/(4T))",
           r"\|\Delta a\|_2 \le \sqrt2\tanh\frac{\max e-\min e}{4T}", _movement,
           lambda p: gradient.change_bound(p["change"], p.temperature), sampler=_moved, sizes=KEYS[:4]),
    _sensitivity("change-by-norm", "||softmax((l+e)/T) - softmax(l/T)|| <= sqrt2 tanh(||e||/(2 sqrt2 T))",
           r"\|\Delta a\|_2 \le \sqrt2\tanh\frac{\|e\|}{2\sqrt2 T}", _movement,
           lambda p: gradient.change_bound_by_norm(distance.norm(p["change"]), p.temperature), sampler=_moved,
           sizes=KEYS[:4]),
    *(_log_derivative(name, family) for name, family in _FAMILIES.items()),
    *map(_constant, ("sigmoid:bias=0", "sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.25", "ssmax", "softmax1")),
    _sensitivity("equal-selectivity-entmax", "entmax-1.5 at equal selectivity stays below 2, softmax grows like ln L",
           r"\mathrm{Lip}_{1.5}(T_{1-\varepsilon}) < 2",
           lambda p: gradient.sensitivity_at_equal_selectivity("entmax15", keys_of(p), torch.sigmoid(-p["odds"])),
           lambda p: torch.full_like(p["odds"], 2.0), assumptions="unit margin gives weight 1 - e among L", tight=False,
           sampler=lambda g, trials, sizes: Point({"odds": normal(g, trials, spread=2.0).abs() + 0.01}, sizes),
           sizes=({"keys": 16}, {"keys": 1024}, {"keys": 65536}), searchable=False),
)  # fmt: skip


def _truncated(point: Point, renormalise: bool) -> Tensor:
    """Size of the output error, computed the long way."""
    a, v = point.weights, point["vectors"]
    kept = torch.where(selected_set(a, count_of(point)), a, 0.0)
    if renormalise:
        kept = kept / kept.sum(-1, keepdim=True)
    return distance.norm(((a - kept).unsqueeze(-1) * v).sum(-2))


def _mass_row(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    sigma = 3 * torch.rand(max(10, trials // 20), generator=generator, dtype=torch.float64)
    logits = sigma.unsqueeze(-1) * normal(generator, len(sigma), sizes["keys"])
    return Point({"logits": logits, "sigma": sigma, "log_temperature": torch.zeros_like(sigma)}, sizes)


_truncation = entries("capacity", assumptions="weights sum to 1", sampler=rows_and_vectors, side="equal", sizes=PLACED,
                      searchable=False, source=ALSO + "arXiv 2512.07647")  # fmt: skip
_closed_form = placed(weights.truncation_errors)

CAPACITY = (
    _truncation("deletion-error", "output error of deletion = (1 - M_S) mu_T", r"e_{\mathrm{del}}=(1-M_S)\mu_T",
           lambda p: 1 + _truncated(p, False), lambda p: 1 + distance.norm(_closed_form(p).deletion)),
    _truncation("renormalised-error", "output error with renormalised weights = (1 - M_S)(mu_T - mu_S)",
           r"e_{\mathrm{ren}}=(1-M_S)(\mu_T-\mu_S)",
           lambda p: 1 + _truncated(p, True), lambda p: 1 + distance.norm(_closed_form(p).renormalised)),
    _truncation("mass-law", "the top fraction rho of normal logits holds Phi(sigma + Phi^-1(rho)), within 5 %",
           r"M(\rho)=\Phi(\sigma+\Phi^{-1}(\rho))", lambda p: weights.top_mass(p.weights, count_of(p)),
           lambda p: weights.mass_law(count_of(p) / keys_of(p), p["sigma"]),
           assumptions="logits iid N(mu, sigma^2), long rows", status="approximation", tight=False, sampler=_mass_row,
           sizes=sized("keys count", (65536, 4096), (65536, 16384)), tolerance=0.05),
)  # fmt: skip


def catalogue() -> tuple[Statement, ...]:
    """Every statement that the library proves, refutes or tests, in the order of the theory.

    Returns:
        Statements, each with its formula, source, assumptions and status; `abbe.verify` tests them all.

    Examples:
        >>> statements = abbe.bounds.catalogue()
        >>> [s.name for s in statements if s.status == "refuted" and s.section == "distance"]
        ['theorem-1-root', 'theorem-1-random-paper', 'collapse-paper']
        >>> statements[0].name, statements[0].status, statements[0].tight
        ('weight-upper', 'proved', True)
    """
    return (*WEIGHTS, *DISTANCE, *SEPARABILITY, *GRADIENT, *CAPACITY)
