"""abbe capacity"""

from __future__ import annotations

from typing import Annotated

from ._options import Lengths, Windows, numbers, setting
from ._study import AnyResult, Subject, study

EXAMPLES = (
    "abbe capacity",
    "abbe capacity smollm2 --text book.txt --tau 0.01 --lengths 256,1024 --no-layers --out smollm2-capacity",
    "abbe capacity ./my-model --way renormalised --figures figures --json",
    "abbe capacity smollm2 --text book.txt --targets last:128",
)


@study(json="Print all tables, findings and the manifest as JSON.")
def capacity(
    *,
    subject: Subject,
    tau: Annotated[str, setting("Allowed rise of the loss, relative to the unchanged model.")] = "0.01,0.05",
    lengths: Lengths = None,
    windows: Windows = 8,
    way: Annotated[
        str, setting("What happens to the kept weights: deletion leaves them, renormalised makes them sum to 1.")
    ] = "deletion,renormalised",
    layers: Annotated[bool, setting("Also truncate every layer alone.", "--layers/--no-layers")] = True,
    layer_lengths: Annotated[
        str | None, setting("Lengths at which single layers are truncated; by default all.")
    ] = None,
    layer_windows: Annotated[int, setting("Windows per length for layers, spread evenly over the text.")] = 4,
    targets: Annotated[
        str, setting("Which tokens of each window are scored: all, or last:N, such as last:128.")
    ] = "all",
) -> AnyResult:
    """How many keys per query a model needs to keep its loss, and whether its geometry agrees."""
    from .. import studies

    return studies.capacity(
        subject.model, subject.text, tau=numbers("--tau", tau, float), lengths=numbers("--lengths", lengths, int),
        windows=windows, way=[one.strip() for one in way.split(",")], layers=layers,
        layer_lengths=numbers("--layer-lengths", layer_lengths, int), layer_windows=layer_windows, targets=targets,
        **subject.shared,
    )  # fmt: skip
