"""Thresholds from which a word applies: tested by the verdicts, drawn in the charts."""

from __future__ import annotations

NEAR_UNIFORM = 0.95  # of the entropy ceiling
SINK = 0.5  # of the weight on the first visible key
FADING = 0.5  # decay exponent; a uniform head has 1
SHARP = 3.0  # effective tokens
FAINT = 0.1  # a largest weight that no longer stands out
PREVIOUS_TOKEN = 0.3  # of the weight on the token before the query
INDUCTION = 0.1  # of the weight on the token after the last copy; in text, most copies predict nothing
TIMES_UNIFORM = 5  # least weight of a pattern over that of a uniform head: in short windows any head has some there
FRAGILE = 1.0  # weight per logit: twice what any softmax row can reach at T = 1
