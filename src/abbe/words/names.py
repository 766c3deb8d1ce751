"""Names in tables of results, which studies write and views look for, and numbers of arXiv 2508.17821."""

from __future__ import annotations

BASELINE = "baseline"  # the model's attention as it is: rows of a comparison, of alternatives, stages of a calibration
CALIBRATED = ", calibrated"  # behind the spec, in a comparison
JUMPS = "jumps"  # whether a normalizer's weights jump somewhere: its sensitivities then hold between the jumps
DELETION, RENORMALISED = "deletion", "renormalised"  # ways of truncating
FIGURES = ("2a", "2b", "2c", "3", "4")  # of arXiv 2508.17821
PAPER_CRITICAL_SHARE = 0.06  # its critical N, as a part of L
