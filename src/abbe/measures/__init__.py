"""Measures of attention rows, streamed in blocks of queries: readings of a block, sums over blocks, means.

    rows = Rows(logits, weights, vectors, softmax=True)
    sets = choose_sets(rows, DEFAULT_GRID, generator)
    readings = dispersion(rows) | selection(rows, sets) | geometry(rows, sets)
    state = update(state, readings)         # any number of blocks, any chunking; merge(a, b) adds two states
    means = compute(state)                  # or at once: summarize(readings)

Every reading has a value and, if they exist, a proved limit and a random control. `list_measures()` explains them.
"""

from ._block import BlockNumbers, block_numbers, join_heads
from ._bootstrap import bootstrap_interval, enough_windows, interval_ends, resampled_counts, resampled_means
from ._critical import CriticalN, critical_n, critical_of_units, ks_test
from ._decay import DecayReading, decay, decay_exponent, mean_decay_exponent, weighted_decay_exponents
from ._dispersion import dispersion, last_occurrence, pattern_keys, patterns, selection
from ._expected import differences, distance_formula, expected_distance
from ._geometry import geometry
from ._registry import GROUPS, MeasureInfo, list_measures, list_tests
from ._rows import Rows
from ._sensitivity import sensitivity
from ._sets import (
    DEFAULT_GRID,
    USUAL_SIZE,
    Sets,
    active_keys,
    by_groups,
    checked_grid,
    choose_sets,
    random_order,
    separable_weight,
)
from ._state import Reading, State, Summary, compute, merge, summarize, update

__all__ = [
    "DEFAULT_GRID",
    "GROUPS",
    "USUAL_SIZE",
    "BlockNumbers",
    "CriticalN",
    "DecayReading",
    "MeasureInfo",
    "Reading",
    "Rows",
    "Sets",
    "State",
    "Summary",
    "active_keys",
    "block_numbers",
    "bootstrap_interval",
    "by_groups",
    "checked_grid",
    "choose_sets",
    "compute",
    "critical_n",
    "critical_of_units",
    "decay",
    "decay_exponent",
    "differences",
    "dispersion",
    "distance_formula",
    "enough_windows",
    "expected_distance",
    "geometry",
    "interval_ends",
    "join_heads",
    "ks_test",
    "last_occurrence",
    "list_measures",
    "list_tests",
    "mean_decay_exponent",
    "merge",
    "pattern_keys",
    "patterns",
    "random_order",
    "resampled_counts",
    "resampled_means",
    "selection",
    "sensitivity",
    "separable_weight",
    "summarize",
    "update",
    "weighted_decay_exponents",
]
