"""abbe report"""

from __future__ import annotations

from ._study import Asked, Heads, Measured, study

EXAMPLES = (
    "abbe report",
    "abbe report smollm2 --text book.txt --open",
    "abbe report ./my-model --lengths 128,512,2048 --figures figures --json",
)


@study(json="Print numbers, verdicts, advice and manifest as JSON.")
def report(*, asked: Asked, heads: Heads) -> Measured:
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page."""
    from ..studies import report as run_report

    result = run_report(asked.model, asked.text, **heads, **asked.shared)
    return Measured(result, "report_table", "save_report_figures")
