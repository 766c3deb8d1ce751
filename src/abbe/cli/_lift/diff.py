"""abbe diff"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import _complete
from .._study import AnyResult, Heads, Subject, study

EXAMPLES = (
    "abbe diff smollm2 ./sharper --text book.txt --open",
    "abbe diff ./run-with-checkpoints --windows 12 --lengths 128",
    "abbe diff abbe-report-first abbe-report-second --json",
)


@study(json="Print sentences, differences, curves and manifest as JSON.", named_by="other")
def diff(
    *,
    subject: Subject,
    other: Annotated[
        str | None,
        typer.Argument(
            help="The model to compare with. Leave it out if MODEL is a folder or a glob of checkpoints. Both may be "
            "run folders of abbe diagnose or abbe report.",
            autocompletion=_complete.models,
        ),
    ] = None,
    heads: Heads,
) -> AnyResult:
    """Two models, or checkpoints, head by head on the same text: what changed beyond chance, and what did not."""
    from ... import studies

    return studies.diff(subject.model, other, subject.text, **heads, **subject.shared)
