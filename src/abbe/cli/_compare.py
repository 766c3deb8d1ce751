"""abbe compare"""

from __future__ import annotations

from typing import Annotated

from ._options import measured, numbers, with_option
from ._study import Asked, Measured, study

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
    asked: Asked,
    length: Annotated[int | None, measured("Tokens per window; 512, or the context if shorter.")] = None,
    windows: Annotated[int, measured("Windows; intervals come from them, a recommendation needs 6.")] = 8,
    needle_lengths: Annotated[
        str | None, measured("Prompt lengths of the needle test in tokens, such as 128,512,1024.")
    ] = None,
    prompts: Annotated[int, measured("Prompts per kind, length and depth.")] = 4,
    calibrate: Annotated[bool, measured("Also compare each normalizer after calibration.", "--calibrate")] = False,
) -> Measured:
    """What replacing softmax would change: loss, sparsity, speed, retrieval."""
    from .. import studies

    needle = numbers("--needle-lengths", needle_lengths, int)
    comparison = studies.compare(
        asked.model, asked.text, normalizers=normalizers, length=length, windows=windows, needle_lengths=needle,
        prompts=prompts, calibrate=calibrate, **asked.shared,
    )  # fmt: skip
    return Measured(comparison)
