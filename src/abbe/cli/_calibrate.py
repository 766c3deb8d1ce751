"""abbe calibrate"""

from __future__ import annotations

from typing import Annotated

from ._options import Queries, count_or_all, setting, with_option
from ._study import AnyResult, Subject, study

EXAMPLES = (
    "abbe calibrate --with entmax:alpha=1.5",
    "abbe calibrate smollm2 --with topk:k=32 --text book.txt --finetune 50 --out fitted",
    "abbe calibrate --with 'layers.2-5=sparsemax; layers.0.heads.3=topk:k=32' --figures figures",
)


@study(json="Print losses, errors, parameters and manifest as JSON.", named_by="normalizer", file="swap")
def calibrate(
    *,
    normalizer: Annotated[
        str,
        with_option(
            "The normalizer, or 'PATTERN=SPEC; ...' for some layers or heads; add learn=true to fit its "
            "parameters as well as temperatures."
        ),
    ],
    subject: Subject,
    length: Annotated[
        int | None, setting("Tokens per window; by default 512, or the model's context if shorter.")
    ] = None,
    windows: Annotated[int, setting("Windows to fit on.")] = 8,
    held_out: Annotated[int, setting("Held-out windows for the losses; a claimed change needs 6.")] = 8,
    queries: Queries = "32",
    steps: Annotated[int, setting("Maximum number of steps of the fit.")] = 20,
    finetune: Annotated[int, setting("Then fine-tune the same parameters on the loss for this many steps.")] = 0,
) -> AnyResult:
    """Swap a normalizer in and fit its temperature head by head to the outputs of the unchanged model."""
    from .. import studies

    return studies.calibrate(
        subject.model, subject.text, normalizer=normalizer, length=length, windows=windows, held_out=held_out,
        queries=count_or_all(queries), steps=steps, finetune=finetune, **subject.shared,
    )  # fmt: skip
