"""abbe report and abbe diagnose: both measure all heads"""

from __future__ import annotations

from typing import Annotated

from .._errors import AbbeError
from ._options import numbers, setting, with_option
from ._study import AnyResult, Heads, Subject, study

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
    subject: Subject,
    heads: Heads,
    each: Annotated[
        str | None, setting("Report on many models instead of one, such as 'checkpoints/*', with an index page.")
    ] = None,
) -> AnyResult:
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page."""
    from .. import studies

    if each is None:
        return studies.report(subject.model, subject.text, **heads, **subject.shared)
    if subject.model != "embedded":
        raise AbbeError(f"--each takes the place of the model {subject.model}: quote its pattern, --each 'runs/*'")
    return studies.report_each(each, subject.text, **heads, **subject.shared)


@study(json="Print the whole table and the manifest as JSON.")
def diagnose(
    *,
    subject: Subject,
    heads: Heads,
    normalizer: Annotated[
        str | None, with_option("Apply another normalizer to the same logits, such as entmax:alpha=1.5.")
    ] = None,
    temperatures: Annotated[str, setting('Temperatures at which sensitivity is measured, or "none".')] = "1",
) -> AnyResult:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from .. import studies

    tried = () if temperatures == "none" else numbers("--temperatures", temperatures, float)
    return studies.diagnose(
        subject.model, subject.text, normalizer=normalizer, temperatures=tried, **heads, **subject.shared
    )
