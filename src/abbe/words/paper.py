"""Figures and numbers of arXiv 2508.17821, for comparison."""

from __future__ import annotations

FIGURES = ("2a", "2b", "2c", "3", "4")
DRIFT = "drift"  # ours: the paper says it in words; computed from the runs of 2a and 2b
PAPER_SECONDS = {"2a": 24 * 60, "2b": 37 * 60, "2c": 17 * 3600, "3": 7 * 60, "4": 60}  # its five algorithms, a laptop

PAPER_CRITICAL_SHARE = 0.06  # its critical N, as a part of L
PAPER_SEPARABILITY = (0.70, 0.85)  # its separable share beyond N of about 16
