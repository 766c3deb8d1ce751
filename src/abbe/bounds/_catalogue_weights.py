"""Catalogue, section 2: weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ..normalizers import normalizer
from . import _weights as weights
from ._catalogue_common import COUNTED, KEYS, OURS, PAPER, count_of, keys_of
from ._statements import Point, Statement, normal, rows


def _spread(point: Point) -> Tensor:
    return point["logits"].amax(-1) - point["logits"].amin(-1)


def _deficit(point: Point) -> Tensor:
    """ln L - H as the mean of w ln w - (w - 1), w = L a: terms >= 0, so a small deficit keeps its digits."""
    w = keys_of(point) * point.weights
    small, over = w < 0.5, w - 1
    log = torch.where(small, torch.log(torch.where(w > 1e-300, w, 1.0)), torch.log1p(torch.where(small, 0.0, over)))
    return (w * log - over).mean(-1)


def _softplus_weights(point: Point) -> Tensor:
    shaped = torch.nn.functional.softplus(point["logits"])
    return shaped / shaped.sum(-1, keepdim=True)


def _softplus_ends(point: Point) -> tuple[Tensor, Tensor]:
    shaped = torch.nn.functional.softplus(point["logits"])
    return shaped.amin(-1), shaped.amax(-1)


def _winners_mass_by_softmax(point: Point) -> Tensor:
    """Build the row that the margin describes, and measure it."""
    keys, count = keys_of(point), count_of(point)
    error = torch.sigmoid(-point["odds"])
    margin = weights.margin_needed(keys, error, point.temperature, count)
    logits = torch.where(torch.arange(keys) < count, margin.unsqueeze(-1), 0.0)
    return torch.softmax(logits / point.temperature.unsqueeze(-1), -1)[..., :count].sum(-1)


WEIGHTS: tuple[Statement, ...] = (
    Statement(
        "weight-upper", "weights",
        "a_i <= 1/(1 + (L-1) e^{(l_min - l_i)/T})",
        r"a_i \le \frac{1}{1+(L-1)e^{(l_{\min}-l_i)/T}}",
        OURS, "softmax", "proved", True, rows,
        lambda p: p.weights.amax(-1),
        lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[1].amax(-1), sizes=KEYS,
    ),
    Statement(
        "weight-lower", "weights",
        "a_i >= 1/(1 + (L-1) e^{(l_max - l_i)/T})",
        r"a_i \ge \frac{1}{1+(L-1)e^{(l_{\max}-l_i)/T}}",
        OURS, "softmax", "proved", True, rows,
        lambda p: p.weights.amin(-1),
        lambda p: weights.weight_bounds(p["logits"], p.temperature.unsqueeze(-1))[0].amin(-1), "lower", sizes=KEYS,
    ),
    Statement(
        "vanishing-paper", "weights",
        "a_i <= e^{2D/T}/L, logits in [-D, D] (Corollary 1)",
        r"a_i \le e^{2D/T}/L",
        PAPER, "softmax, |l| <= D", "proved", False, rows,
        lambda p: p.weights.amax(-1),
        lambda p: weights.weight_range_paper(p["logits"].abs().amax(-1), keys_of(p), p.temperature)[1], sizes=KEYS,
    ),
    Statement(
        "vanishing", "weights",
        "a_i <= 1/(1 + (L-1) e^{-R/T}), R = max l - min l",
        r"a_i \le \frac{1}{1+(L-1)e^{-R/T}}",
        OURS, "softmax", "proved", True, rows,
        lambda p: p.weights.amax(-1),
        lambda p: weights.weight_range(_spread(p), keys_of(p), p.temperature)[1], sizes=KEYS,
    ),
    Statement(
        "general-weight-paper", "weights",
        "F(l_i)/sum F <= (max F/min F)/L (Lemma 1), tried with F = softplus",
        r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{\max F}{\min F}\frac1L",
        PAPER, "F continuous and positive, L not in F", "proved", False, rows,
        lambda p: _softplus_weights(p).amax(-1),
        lambda p: weights.general_weight_range_paper(*_softplus_ends(p), keys_of(p))[1], sizes=KEYS,
    ),
    Statement(
        "general-weight", "weights",
        "F(l_i)/sum F <= 1/(1 + (L-1) min F/max F), tried with F = softplus",
        r"\frac{F(l_i)}{\sum_j F(l_j)} \le \frac{1}{1+(L-1)\min F/\max F}",
        OURS, "F positive", "proved", True, rows,
        lambda p: _softplus_weights(p).amax(-1),
        lambda p: weights.general_weight_range(*_softplus_ends(p), keys_of(p))[1], sizes=KEYS,
    ),
    Statement(
        "top-mass", "weights",
        "mass of the N largest <= N/(N + (L-N) e^{-R/T})",
        r"\bar a_N \le \frac{N}{N+(L-N)e^{-R/T}}",
        OURS, "softmax", "proved", True, rows,
        lambda p: weights.top_mass(p.weights, count_of(p)),
        lambda p: weights.top_mass_bounds(_spread(p), keys_of(p), count_of(p), p.temperature)[1], sizes=COUNTED,
    ),
    Statement(
        "entropy-deficit", "weights",
        "ln L - H <= ln S(e^{R/T}), S the Specht ratio",
        r"\ln L - H \le \ln S(e^{R/T})",
        OURS, "softmax", "proved", True, rows, _deficit,
        lambda p: weights.entropy_deficit_bound(_spread(p), p.temperature), sizes=(*KEYS, {"keys": 400}),
    ),
    Statement(
        "entropy-deficit-loose", "weights",
        "ln L - H <= R^2/(8 T^2)",
        r"\ln L - H \le \frac{R^2}{8T^2}",
        OURS, "softmax", "proved", True, rows, _deficit,
        lambda p: weights.entropy_deficit_bound_loose(_spread(p), p.temperature), sizes=KEYS,
    ),
    Statement(
        "effective-number", "weights",
        "1/sum a^2 >= 4 L rho/(1 + rho)^2, rho = e^{R/T}",
        r"\frac{1}{\sum a_i^2} \ge \frac{4L\rho}{(1+\rho)^2}",
        OURS, "softmax", "proved", True, rows,
        lambda p: weights.effective_number(p.weights),
        lambda p: weights.effective_number_bound(_spread(p), keys_of(p), p.temperature), "lower", sizes=KEYS,
    ),
    Statement(
        "log-margin", "weights",
        "N equal winners at margin T ln((L-N)(1-e)/(N e)) hold a mass of 1 - e",
        r"\delta = T\ln\frac{(L-N)(1-\varepsilon)}{N\varepsilon} \iff \bar a_N = 1-\varepsilon",
        OURS, "softmax, equal others", "proved", True,
        lambda g, trials, sizes: Point(
            {"log_temperature": normal(g, trials), "odds": normal(g, trials, spread=3.0)}, sizes
        ),
        lambda p: _winners_mass_by_softmax(p),
        lambda p: torch.sigmoid(p["odds"]), "equal", sizes=COUNTED,
    ),
    Statement(
        "entmax-top-weight", "weights",
        "alpha-entmax, k keys within 1/(alpha-1) of the top: largest weight >= 1/k at every L",
        r"p_{\max} \ge 1/k",
        OURS, "alpha-entmax, alpha > 1 (tried at 1.5)", "proved", True, rows,
        lambda p: normalizer("entmax:alpha=1.5")(p["logits"]).amax(-1),
        lambda p: 1 / weights.entmax_contenders(p["logits"], 1.5).double(), "lower", sizes=KEYS, searchable=False,
    ),
    Statement(
        "entmax-entropy", "weights",
        "alpha-entmax, k keys within the gap: H <= ln k at every L",
        r"H(p) \le \ln k",
        OURS, "alpha-entmax, alpha > 1 (tried at 2)", "proved", True, rows,
        lambda p: weights.entropy(normalizer("sparsemax")(p["logits"])) + 1,
        lambda p: weights.entmax_contenders(p["logits"], 2.0).double().log() + 1, sizes=KEYS, searchable=False,
    ),
)  # fmt: skip
