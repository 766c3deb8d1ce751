"""Catalogue, section 2: weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ..normalizers import normalizer
from . import _dispersion as dispersion
from . import _margin as margins
from . import _weights as weights
from ._statements import COUNTED, KEYS, PAPER, Point, Sizes, count_of, entries, keys_of, normal, rows


def _spread(point: Point) -> Tensor:
    return point["logits"].amax(-1) - point["logits"].amin(-1)


def _deficit(point: Point) -> Tensor:
    """ln L - H as the mean of w ln w - (w - 1), w = L a: terms >= 0, so a small deficit keeps its digits."""
    w = keys_of(point) * point.weights
    small, over = w < 0.5, w - 1  # near 1 the logarithm is that of 1 + over, which keeps the digits of over
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
    margin = margins.margin_needed(keys, error, point.temperature, count)
    logits = torch.where(torch.arange(keys, device=margin.device) < count, margin.unsqueeze(-1), 0.0)
    return torch.softmax(logits / point.temperature.unsqueeze(-1), -1)[..., :count].sum(-1)


_entry = entries("weights", assumptions="softmax", sampler=rows, sizes=KEYS)

WEIGHTS = (
    _entry("weight-upper", "a_i <= 1/(1 + (L-1) e^{(l_min - l_i)/T})",
           r"a_i \le \frac{1}{1+(L-1)e^{(l_{\min}-l_i)/T}}", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[1].amax(-1)),
    _entry("weight-lower", "a_i >= 1/(1 + (L-1) e^{(l_max - l_i)/T})",
           r"a_i \ge \frac{1}{1+(L-1)e^{(l_{\max}-l_i)/T}}", lambda p: p.weights.amin(-1),
           lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[0].amin(-1), side="lower"),
    _entry("vanishing-paper", "a_i <= e^{2D/T}/L, logits in [-D, D] (Corollary 1)",
           r"a_i \le e^{2D/T}/L", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_range_paper(p["logits"].abs().amax(-1), keys_of(p), p.temperature)[1],
           source=PAPER, assumptions="softmax, |l| <= D", tight=False),
    _entry("vanishing", "a_i <= 1/(1 + (L-1) e^{-R/T}), R = max l - min l",
           r"a_i \le \frac{1}{1+(L-1)e^{-R/T}}", lambda p: p.weights.amax(-1),
           lambda p: weights.weight_range(_spread(p), keys_of(p), p.temperature)[1]),
    _entry("general-weight-paper", "F(l_i)/sum F <= (max F/min F)/L (Lemma 1), tried with F = softplus",
           r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{\max F}{\min F}\frac1L", _largest_softplus_weight,
           lambda p: weights.general_weight_range_paper(*_softplus_ends(p), keys_of(p))[1],
           source=PAPER, assumptions="F continuous and positive, L not in F", tight=False),
    _entry("general-weight", "F(l_i)/sum F <= 1/(1 + (L-1) min F/max F), tried with F = softplus",
           r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{1}{1+(L-1)\min F/\max F}", _largest_softplus_weight,
           lambda p: weights.general_weight_range(*_softplus_ends(p), keys_of(p))[1], assumptions="F positive"),
    _entry("top-mass", "mass of the N largest <= N/(N + (L-N) e^{-R/T})",
           r"\bar a_N \le \frac{N}{N+(L-N)e^{-R/T}}", lambda p: weights.top_mass(p.weights, count_of(p)),
           lambda p: weights.top_mass_bounds(_spread(p), keys_of(p), count_of(p), p.temperature)[1], sizes=COUNTED),
    _entry("entropy-deficit", "ln L - H <= ln S(e^{R/T}), S the Specht ratio", r"\ln L - H \le \ln S(e^{R/T})",
           _deficit, lambda p: dispersion.entropy_deficit_bound(_spread(p), p.temperature),
           sizes=(*KEYS, {"keys": 400})),
    _entry("entropy-deficit-loose", "ln L - H <= R^2/(8 T^2)", r"\ln L - H \le \frac{R^2}{8T^2}",
           _deficit, lambda p: dispersion.entropy_deficit_bound_loose(_spread(p), p.temperature)),
    _entry("effective-number", "1/sum a^2 >= 4 L rho/(1 + rho)^2, rho = e^{R/T}",
           r"\frac{1}{\sum a_i^2} \ge \frac{4L\rho}{(1+\rho)^2}", lambda p: dispersion.effective_number(p.weights),
           lambda p: dispersion.effective_number_bound(_spread(p), keys_of(p), p.temperature), side="lower"),
    _entry("log-margin", "N equal winners at margin T ln((L-N)(1-e)/(N e)) hold a mass of 1 - e",
           r"\delta = T\ln\frac{(L-N)(1-\varepsilon)}{N\varepsilon} \iff \bar a_N = 1-\varepsilon",
           _winners_mass_by_softmax, lambda p: torch.sigmoid(p["odds"]),
           assumptions="softmax, equal others", sampler=_odds, side="equal", sizes=COUNTED),
    _entry("entmax-top-weight",
           "alpha-entmax, k keys within 1/(alpha-1) of the top: largest weight >= 1/k at every L",
           r"p_{\max} \ge 1/k", lambda p: normalizer("entmax:alpha=1.5")(p["logits"]).amax(-1),
           lambda p: 1 / margins.entmax_contenders(p["logits"], 1.5).double(),
           assumptions="alpha-entmax, alpha > 1 (tried at 1.5)", side="lower", searchable=False),
    _entry("entmax-entropy", "alpha-entmax, k keys within the gap: H <= ln k at every L",
           r"H(p) \le \ln k", lambda p: dispersion.entropy(normalizer("sparsemax")(p["logits"])) + 1,
           lambda p: margins.entmax_contenders(p["logits"], 2.0).double().log() + 1,
           assumptions="alpha-entmax, alpha > 1 (tried at 2)", searchable=False),
)  # fmt: skip
