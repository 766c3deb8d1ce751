"""Names in tables of results: studies write them, views look for them."""

from __future__ import annotations

BASELINE = "baseline"  # the model's attention as it is: rows of a comparison, of alternatives, stages of a calibration
SWAPPED, FITTED, FINETUNED = "swapped", "calibrated", "fine-tuned"  # the other stages of a calibration
CALIBRATED = ", calibrated"  # behind the spec, in a comparison
JUMPS = "jumps"  # whether a normalizer's weights jump somewhere: its sensitivities then hold between the jumps
DELETION, RENORMALISED = "deletion", "renormalised"  # ways of truncating
