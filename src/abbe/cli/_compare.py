"""abbe compare"""

from __future__ import annotations

from typing import Annotated

from ._options import numbers, setting, with_option
from ._study import AnyResult, Subject, study

EXAMPLES = (
    "abbe compare",
    "abbe compare smollm2 --with entmax:alpha=1.5 --with topk:k=32 --text book.txt",
    "abbe compare smollm2 --with 'layers.10-29=softmax:temperature=0.8' --with file:fitted/calibrated.safetensors",
    "abbe compare ./my-model --with sparsemax --calibrate --figures figures --json",
)


@study(json="Print table, needle test, recommendation and manifest as JSON.")
def compare(
    *,
    normalizers: Annotated[
        list[str] | None,
        with_option(
            "A normalizer, 'PATTERN=SPEC; ...' for some layers or heads, or file:PATH of a saved swap; may be "
            "repeated. Without one: entmax:alpha=1.5, sparsemax, topk:k=32 and topp:p=0.9."
        ),
    ] = None,
    subject: Subject,
    length: Annotated[int | None, setting("Tokens per window; 512, or the context if shorter.")] = None,
    windows: Annotated[int, setting("Windows, from which the intervals come; at least 6 for a recommendation.")] = 8,
    needle_lengths: Annotated[
        str | None, setting("Prompt lengths of the needle test in tokens, such as 128,512,1024.")
    ] = None,
    prompts: Annotated[int, setting("Prompts per kind, length and depth.")] = 4,
    calibrate: Annotated[bool, setting("Also compare each normalizer after calibration.", "--calibrate")] = False,
) -> AnyResult:
    """What replacing softmax would change: loss, sparsity, speed, retrieval."""
    from .. import studies

    return studies.compare(
        subject.model, subject.text, normalizers=normalizers, length=length, windows=windows,
        needle_lengths=numbers("--needle-lengths", needle_lengths, int), prompts=prompts, calibrate=calibrate,
        **subject.shared,
    )  # fmt: skip
