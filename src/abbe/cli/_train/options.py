"""Options that all experiments have."""

from __future__ import annotations

from typing import Annotated

from .. import _complete
from .._options import measured, with_option

Normalizers = Annotated[
    list[str] | None, with_option("A normalizer to train with, such as entmax:alpha=1.5; may be repeated.")
]
Optimizers = Annotated[
    list[str] | None,
    measured("sgd, adamw or muon; may be repeated.", "--optimizer", autocompletion=_complete.optimizers),
]
Rates = Annotated[str | None, measured("Learning rates to try, such as 0.001,0.01,0.1.")]
Seeds = Annotated[int | None, measured("Seeds per run, starting at --seed; intervals are computed over them.")]
Steps = Annotated[int | None, measured("Training steps per run.")]
Temperature = Annotated[
    str | None, measured("Temperature of all runs: a number, learned, or a schedule such as geometric:1:0.1.")
]
Normed = Annotated[bool, measured("Normalize queries and keys.", "--qk-norm/--no-qk-norm")]
Quick = Annotated[bool, measured("Fewer choices, seeds and steps: less than a minute.", "--quick")]
Workers = Annotated[int | None, measured("Runs in parallel; by default one per core, or one on an accelerator.")]
