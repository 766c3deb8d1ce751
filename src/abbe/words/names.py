"""Names in the tables of results that studies write and views look for."""

from __future__ import annotations

BASELINE = "baseline"  # the model's attention as it is: rows of a comparison, of alternatives, stages of a calibration
SWAPPED, FITTED, FINETUNED = "swapped", "calibrated", "fine-tuned"  # the other stages of a calibration
CALIBRATED = ", calibrated"  # behind the spec, in a comparison
JUMPS = "jumps"  # whether a normalizer's weights jump somewhere: its sensitivities are then those between the jumps
DELETION, RENORMALISED = "deletion", "renormalised"  # ways of truncating
