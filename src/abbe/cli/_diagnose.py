"""abbe diagnose"""

from __future__ import annotations

from typing import Annotated

from ._options import measured, numbers, with_option
from ._study import Asked, Heads, Measured, study

EXAMPLES = (
    "abbe diagnose",
    "abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run",
    "abbe diagnose ./my-model --with entmax:alpha=1.5 --json",
)


@study(json="Print the whole table and the manifest as JSON.")
def diagnose(
    *,
    asked: Asked,
    heads: Heads,
    normalizer: Annotated[
        str | None, with_option("Another normalizer for the same logits, such as entmax:alpha=1.5.")
    ] = None,
    temperatures: Annotated[str, measured('Temperatures at which sensitivity is measured, or "none".')] = "1",
) -> Measured:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from ..studies import diagnose as run_diagnose

    tried = () if temperatures == "none" else numbers("--temperatures", temperatures, float)
    run = run_diagnose(asked.model, asked.text, normalizer=normalizer, temperatures=tried, **heads, **asked.shared)
    return Measured(run, "diagnosis_table", "save_diagnosis_figures")
