"""Catalogue, section 5: gradient sensitivity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..normalizers import normalizer
from . import _change as change
from . import _distance as distance
from . import _gradient as gradient
from ._statements import KEYS, PAPER, Point, Sizes, Statement, T, entries, keys_of, normal, rows

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


_entry = entries("gradient", assumptions="softmax", sampler=rows, sizes=KEYS)


def _log_derivative(name: str, family: Callable[[Tensor], Tensor]) -> Statement:
    return _entry(
        f"log-derivative-{name}", f"||J_F||_2 <= (1/2) max |(log F)'|, F = {name}",
        r"\|J_F\|_2 \le \tfrac12\max|(\log F)'|", lambda p: _general_norm(family, p["logits"]),
        lambda p: change.log_derivative_bound(_log_slope(family, p["logits"]).abs().amax(-1)),
        assumptions="F positive and differentiable", sampler=_moderate, sizes=({"keys": 2}, {"keys": 6}),
    )  # fmt: skip


def _constant(spec: str) -> Statement:
    """Lipschitz constant of a normalizer as a statement."""
    tested = normalizer(spec)
    return _entry(
        f"lipschitz-{spec.replace(':', '-').replace('=', '')}", f"sup ||J||_2 of {spec} is its lipschitz(keys)",
        rf"\sup\|J\|_2,\ \text{{{spec}}}", lambda p: spectral(tested.jacobian(p["logits"])),
        lambda p: p["logits"].new_full(p["logits"].shape[:-1], tested.lipschitz(keys_of(p)), dtype=torch.float64),
        # The Jacobians of entmax come from thresholds: some digits of the ratio are lost.
        assumptions=spec, sampler=_moderate, sizes=({"keys": 2}, {"keys": 3}, {"keys": 12}), tolerance=1e-8,
    )  # fmt: skip


_CONSTANTS = ("sigmoid:bias=0", "sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.25", "ssmax", "softmax1")

GRADIENT = (
    _entry("largest-entry", "max |J_ij| <= 1/(4T)", r"\max_{ij}|J_{ij}| \le \frac{1}{4T}",
           _of_row(gradient.largest_entry), lambda p: 0.25 / p.temperature),
    _entry("spectral", "||J||_2 <= 1/(2T)", r"\|J\|_2 \le \frac{1}{2T}",
           _of_row(gradient.spectral_norm), lambda p: gradient.spectral_norm_supremum(p.temperature)),
    _entry("spectral-paper", "||J||_2 <= min{1/(4T), sqrt 2} (Corollary 3)", r"\|J\|_2 \le \min\{1/(4T),\sqrt2\}",
           _of_row(gradient.spectral_norm), lambda p: gradient.spectral_norm_bound_paper(p.temperature),
           source=PAPER, status="refuted", tight=False),
    _entry("spectral-row-upper", "||J||_2 <= 2 max a(1-a)/T", r"\|J\|_2 \le 2\max_i a_i(1-a_i)/T",
           _of_row(gradient.spectral_norm), lambda p: _of_row(gradient.spectral_norm_bounds)(p)[1]),
    _entry("spectral-row-lower", "||J||_2 >= max a(1-a)/T", r"\|J\|_2 \ge \max_i a_i(1-a_i)/T",
           _of_row(gradient.spectral_norm), lambda p: _of_row(gradient.spectral_norm_bounds)(p)[0],
           tight=False, side="lower"),
    _entry("frobenius", "||J||_F <= sqrt(p2 (1 - p2))/T <= 1/(2T)", r"\|J\|_F \le \sqrt{p_2(1-p_2)}/T",
           _of_row(gradient.frobenius_norm), _of_row(gradient.frobenius_norm_bound)),
    _entry("one-norm", "||J||_{1->1} <= 1/(2T)", r"\|J\|_{1\to1} \le \frac{1}{2T}",
           _of_row(gradient.one_norm), lambda p: 0.5 / p.temperature),
    _entry("inf-to-one", "||J||_{inf->1} <= 1/T", r"\|J\|_{\infty\to1} \le \frac1T",
           _of_row(gradient.inf_to_one_norm), lambda p: gradient.inf_to_one_supremum(p.temperature), sizes=KEYS[:3]),
    _entry("change", "||softmax((l+e)/T) - softmax(l/T)|| <= sqrt2 tanh((max e - min e)/(4T))",
           r"\|\Delta a\|_2 \le \sqrt2\tanh\frac{\max e-\min e}{4T}", _movement,
           lambda p: change.change_bound(p["change"], p.temperature), sampler=_moved, sizes=KEYS[:4]),
    _entry("change-by-norm", "||softmax((l+e)/T) - softmax(l/T)|| <= sqrt2 tanh(||e||/(2 sqrt2 T))",
           r"\|\Delta a\|_2 \le \sqrt2\tanh\frac{\|e\|}{2\sqrt2 T}", _movement,
           lambda p: change.change_bound_by_norm(distance.norm(p["change"]), p.temperature), sampler=_moved,
           sizes=KEYS[:4]),
    *(_log_derivative(name, family) for name, family in _FAMILIES.items()),
    *(_constant(spec) for spec in _CONSTANTS),
    _entry("equal-selectivity-entmax", "entmax-1.5 at equal selectivity stays below 2, softmax grows like ln L",
           r"\mathrm{Lip}_{1.5}(T_{1-\varepsilon}) < 2",
           lambda p: change.sensitivity_at_equal_selectivity("entmax15", keys_of(p), torch.sigmoid(-p["odds"])),
           lambda p: torch.full_like(p["odds"], 2.0), assumptions="unit margin gives weight 1 - e among L", tight=False,
           sampler=lambda g, trials, sizes: Point({"odds": normal(g, trials, spread=2.0).abs() + 0.01}, sizes),
           sizes=({"keys": 16}, {"keys": 1024}, {"keys": 65536}), searchable=False),
)  # fmt: skip
