"""The one list over which every test of the normalizers runs: to test a new normalizer, add one line to CASES.

The flags say which laws hold; the default is a map onto the simplex that has all of them. `make test-all` runs every
test on every case. `make test` runs derivatives and kernels on all, contracts on CORE (one case for each row map and
combination of maps), and what the base class does for all maps alike on BASE.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

import abbe


@dataclass(frozen=True)
class Case:
    """A spec, and which laws its weights keep."""

    spec: str
    simplex: bool = True  # a row with keys sums to 1
    shift_invariant: bool = True  # a constant added to all logits changes nothing
    order_preserving: bool = True  # a larger logit never gets a smaller weight
    permutation_equivariant: bool = True
    row_coupled: bool = True  # a NaN spoils its row, not only its key
    continuous: bool = True
    smooth: bool = True  # differentiable everywhere, so that finite differences need no care

    def make(self, dtype: torch.dtype = torch.float64) -> abbe.Normalizer:
        """The normalizer, each head with a learned value of its own."""
        made = abbe.normalizer(self.spec).to(dtype)
        with torch.no_grad():
            for raw in made.parameters():
                if raw.ndim == 3:
                    raw += torch.linspace(-0.6, 0.6, len(raw), dtype=dtype).view_as(raw)
        return made

    @property
    def learns(self) -> bool:
        return any(True for _ in self.make().parameters())

    @property
    def heads(self) -> int:
        return max((len(raw) for raw in self.make().parameters() if raw.ndim == 3), default=1)

    @property
    def name(self) -> str:
        return self.spec.partition(":")[0]

    def __str__(self) -> str:
        return self.spec


def _gate(spec: str, **flags: bool) -> Case:
    """A map whose rows do not sum to 1 and which depends on the level of the logits."""
    return Case(spec, simplex=False, shift_invariant=False, **flags)


def _jumps(spec: str, **flags: bool) -> Case:
    """A selection: it jumps where the selected set changes."""
    return Case(spec, continuous=False, smooth=False, **flags)


CASES = (
    Case("softmax"),
    Case("softmax:temperature=0.3"),
    Case("softmax:temperature=4"),
    Case("learned-temperature:t=0.5"),
    Case("learned-temperature:t=-0.5,heads=3"),
    Case("adaptive-temperature", smooth=False),
    Case("ssmax"),
    Case("ssmax:s=0.4,learn=true"),
    Case("ssmax:s=0.4,learn=true,heads=3"),
    Case("logn:trained=16"),
    Case("logn:trained=3,floor=1"),
    Case("logn:trained=16,slope=-0.5"),
    Case("logn:trained=3,slope=2,beyond=true,learn=true,heads=3"),
    Case("sparsemax", smooth=False),
    Case("entmax:alpha=1.05", smooth=False),
    Case("entmax:alpha=1.25", smooth=False),
    Case("entmax:alpha=1.5", smooth=False),
    Case("entmax:alpha=1.75", smooth=False),
    Case("entmax:alpha=2", smooth=False),
    Case("entmax:alpha=1.3,learn=true", smooth=False),
    Case("entmax:alpha=1.5,learn=true,heads=3", smooth=False),
    Case("asentmax:alpha=1.5", smooth=False),
    Case("asentmax:alpha=1.25,delta=0.5,beta=0.2,gamma=1.5", smooth=False),
    Case("asentmax:alpha=1.5,beta=0.5,learn=true,heads=3", smooth=False),
    Case("asentmax:alpha=2,delta=0.3,beta=0.4,gamma=-1,learn=true", smooth=False),
    Case("normmax:alpha=1.25", smooth=False),
    Case("normmax:alpha=2", smooth=False),
    Case("normmax:alpha=5", smooth=False),
    Case("normmax:alpha=1.5,learn=true,heads=3", smooth=False),
    Case("budget:budget=2", simplex=False, smooth=False),
    Case("budget:budget=3.5", simplex=False, smooth=False),
    _gate("softmax1"),
    _gate("sink:b=8"),
    _gate("sink:b=-8"),
    _gate("sink:b=0.5,learn=true"),
    _gate("sink:b=0.5,learn=true,heads=3"),
    Case("clipped", simplex=False, smooth=False),
    Case("clipped:zeta=1.1,gamma=-0.1", simplex=False, smooth=False),
    _gate("sigmoid", row_coupled=False),
    _gate("sigmoid:bias=-2", row_coupled=False),
    _gate("relu", smooth=False),
    _gate("relu:power=1.5", smooth=False),
    _gate("relu:power=2", smooth=False),
    _gate("relu:power=3,eps=0.01", smooth=False),
    _gate("softpick", smooth=False),
    _gate("self-adjusted", continuous=False, smooth=False),
    _jumps("topk:k=1"),
    _jumps("topk:k=3"),
    _jumps("topk:k=3,renormalize=false", simplex=False),
    _jumps("topp:p=0.9"),
    _jumps("topp:p=0.4"),
    _jumps("threshold:rel=0.1"),
    Case("elastic:tau=-1", simplex=False, smooth=False),
    Case("elastic:tau=-0.5,learn=true", simplex=False, smooth=False),
    Case("elastic:tau=-0.5,learn=true,heads=3", simplex=False, smooth=False),
    Case("norm-softmax", smooth=False),
    Case("norm-softmax:gamma=0.5", smooth=False),
    Case("norm-softmax:gamma=10"),
    _gate("stick-breaking", order_preserving=False, permutation_equivariant=False),
    Case("hybrid:a=softmax,b=sparsemax,mix=0.25", smooth=False),
    _jumps("hybrid:a=(entmax:alpha=1.5,learn=true,heads=3),b=topk:k=3,mix=0.7,learn=true,heads=3"),
    _gate("hybrid:a=(hybrid:a=softmax1,b=(sink:b=2,learn=true),mix=0.5),b=sigmoid,mix=0.3,learn=true"),
    Case("scaled:of=softmax,t=0.7"),
    Case("scaled:of=ssmax:s=0.4,t=-0.7,learn=true"),
    Case("scaled:of=(entmax:alpha=1.5,learn=true,heads=3),t=0.3,learn=true,heads=3", smooth=False),
    Case("scaled:of=(scaled:of=sparsemax,t=-0.5,learn=true),t=0.3,learn=true,heads=3", smooth=False),
    Case("scaled:of=clipped,t=0.5,learn=true", simplex=False, smooth=False),
    _gate("scaled:of=(sink:b=0.5,learn=true,heads=3),t=0.3,learn=true"),
    _gate("scaled:of=sigmoid:bias=-2,t=-0.5,learn=true,heads=3", row_coupled=False),
    _jumps("scaled:of=topk:k=3,t=0.5,learn=true,heads=3"),
    _gate("scaled:of=stick-breaking,t=0.5", order_preserving=False, permutation_equivariant=False),
    _jumps("hybrid:a=(scaled:of=topk:k=3,t=0.5,learn=true),b=(scaled:of=softmax,t=0.5),mix=0.5"),
)


CORE = frozenset((
    "softmax:temperature=0.3",
    "learned-temperature:t=-0.5,heads=3",
    "adaptive-temperature",
    "ssmax:s=0.4,learn=true",
    "logn:trained=16",
    "sparsemax",
    "entmax:alpha=1.25",
    "entmax:alpha=1.5",
    "entmax:alpha=1.5,learn=true,heads=3",
    "asentmax:alpha=1.5,beta=0.5,learn=true,heads=3",
    "normmax:alpha=2",
    "normmax:alpha=1.5,learn=true,heads=3",
    "budget:budget=3.5",
    "softmax1",
    "sink:b=0.5,learn=true,heads=3",
    "clipped:zeta=1.1,gamma=-0.1",
    "sigmoid",
    "relu:power=1.5",
    "softpick",
    "self-adjusted",
    "topk:k=3",
    "topk:k=3,renormalize=false",
    "topp:p=0.4",
    "threshold:rel=0.1",
    "elastic:tau=-0.5,learn=true,heads=3",
    "norm-softmax:gamma=0.5",
    "stick-breaking",
    "hybrid:a=softmax,b=sparsemax,mix=0.25",
    "hybrid:a=(entmax:alpha=1.5,learn=true,heads=3),b=topk:k=3,mix=0.7,learn=true,heads=3",
    "scaled:of=(entmax:alpha=1.5,learn=true,heads=3),t=0.3,learn=true,heads=3",
    "scaled:of=stick-breaking,t=0.5",
))  # fmt: skip
BASE = frozenset((
    "softmax:temperature=0.3",
    "entmax:alpha=1.5,learn=true,heads=3",
    "topk:k=3",
    "hybrid:a=softmax,b=sparsemax,mix=0.25",
))  # fmt: skip
_EVERY = frozenset(str(case) for case in CASES)


def every_case(*needs: str, quick: frozenset[str] = CORE) -> pytest.MarkDecorator:
    """Parametrise a test over the cases that have all the flags (or `learns`) named; "not x" for those without.

    Those outside of `quick` are slow tests.
    """
    chosen = [case for case in CASES if all(_has(case, need) for need in needs)]
    return pytest.mark.parametrize("case", [case if str(case) in quick else slow(case) for case in chosen], ids=str)


def all_cases(*needs: str) -> pytest.MarkDecorator:
    """`every_case`, all of them in the quick tier: for derivatives and kernels, where each case is code of its own."""
    return every_case(*needs, quick=_EVERY)


def base_cases(*needs: str) -> pytest.MarkDecorator:
    """`every_case`, few of them in the quick tier: for what the base class does."""
    return every_case(*needs, quick=BASE)


def slow(*values: object) -> ParameterSet:
    """Values of a parameter that only `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def narrow(*values: object) -> ParameterSet:
    """Values of a parameter that run with narrower vectors, too (tests/normalizers/kernels/test_widths.py)."""
    return pytest.param(*values, marks=pytest.mark.narrow)


def _has(case: Case, need: str) -> bool:
    return not getattr(case, need.removeprefix("not ")) if need.startswith("not ") else getattr(case, need)


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """N(0, scale^2); every case takes the shape (..., 3, queries, keys)."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (scale * drawn).to(dtype)


def random_mask(*shape: int, seed: int = 0, visible: float = 0.6) -> Tensor:
    """A bool mask in which every row sees at least one key."""
    draw = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    return (draw < visible) | (draw == draw.amin(-1, keepdim=True))


def generic_logits(case: Case, *shape: int, seed: int = 0, reach: float = 1e-3) -> Tensor:
    """Random float64 logits at which no key is within about `reach` of a kink or a jump of the case."""
    for attempt in range(seed, seed + 200):
        logits = random_logits(*shape, seed=1000 * attempt)
        if case.smooth or _far_from_kinks(case.make(), logits, reach):
            return logits
    raise AssertionError(f"no generic point found for {case}")


def _far_from_kinks(normalizer: abbe.Normalizer, logits: Tensor, reach: float) -> bool:
    """Jacobians at shifted points stay close: a kink or a jump in reach would show as a change of order 1."""
    if bool((logits.abs() < reach).any()):
        return False
    with torch.no_grad():
        here = normalizer.jacobian(logits)
        size = here.abs().amax((-2, -1)).clamp(min=1e-3)
        for seed in range(6):
            there = normalizer.jacobian(logits + reach * torch.sign(random_logits(*logits.shape, seed=seed)))
            if bool(((there - here).abs().amax((-2, -1)) > 40 * reach * size).any()):
                return False
    return True
