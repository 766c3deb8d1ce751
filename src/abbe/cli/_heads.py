"""abbe report and abbe diagnose: both measure all heads"""

from __future__ import annotations

from typing import Annotated

from .._errors import AbbeError
from ._options import measured, numbers, with_option
from ._study import Asked, Heads, Measured, study

REPORT_EXAMPLES = (
    "abbe report",
    "abbe report smollm2 --text book.txt --open",
    "abbe report ./my-model --device auto --dtype bfloat16",
    "abbe report --each 'checkpoints/*' --text book.txt --engine ray --actors 2",
    "abbe report ./my-model --lengths 128,512,2048 --figures figures --json",
)
DIAGNOSE_EXAMPLES = (
    "abbe diagnose",
    "abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run",
    "abbe diagnose ./my-model --with entmax:alpha=1.5 --json",
)


@study(json="Print numbers, verdicts, advice and manifest as JSON.")
def report(
    *,
    asked: Asked,
    heads: Heads,
    each: Annotated[
        str | None, measured("Report on many models instead of one, such as 'checkpoints/*', with an index page.")
    ] = None,
) -> Measured:
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page."""
    from .. import studies
    from ..studies import report_each

    if each is not None:
        if asked.model != "embedded":
            raise AbbeError(f"--each takes the place of the model {asked.model}: quote its pattern, --each 'runs/*'")
        reports = report_each(each, asked.text, **heads, **asked.shared)
        return Measured(reports)
    result = studies.report(asked.model, asked.text, **heads, **asked.shared)
    return Measured(result)


@study(json="Print the whole table and the manifest as JSON.")
def diagnose(
    *,
    asked: Asked,
    heads: Heads,
    normalizer: Annotated[
        str | None, with_option("Apply another normalizer to the same logits, such as entmax:alpha=1.5.")
    ] = None,
    temperatures: Annotated[str, measured('Temperatures at which sensitivity is measured, or "none".')] = "1",
) -> Measured:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from .. import studies

    tried = () if temperatures == "none" else numbers("--temperatures", temperatures, float)
    run = studies.diagnose(asked.model, asked.text, normalizer=normalizer, temperatures=tried, **heads, **asked.shared)
    return Measured(run)
