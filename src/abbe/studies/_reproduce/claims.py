"""What arXiv 2508.17821 says, judged on the data of figures: each statement by a rule with numbers.

The rules are ours: the paper states most of this in words. They stand beside every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...words.paper import DRIFT
from . import claims_distance as distance
from . import claims_weights as weights
from .result import Claim, Figure


def judge(figures: Mapping[str, Figure]) -> tuple[Claim, ...]:
    """All statements for which there is a figure."""
    rules: Mapping[str, Sequence[Callable[[Figure], Claim]]] = {
        "2a": (distance.growth, distance.bound_is_loose, distance.formula_is_upper_bound),
        "2b": (distance.plateau,),
        "2c": (distance.critical_share, distance.critical_growth, distance.collapse),
        "3": (weights.separability_falls, weights.separability_settles),
        "4": (weights.growth_at_low_temperature, weights.ceiling),
        DRIFT: (weights.drift_with_size, weights.drift_with_length),
    }
    return tuple(rule(figures[name]) for name, of_figure in rules.items() if name in figures for rule in of_figure)
