"""abbe reproduce"""

from __future__ import annotations

from typing import Annotated

from . import _complete
from ._names import FIGURES
from ._options import count_or_all, setting
from ._study import AnyResult, Subject, study

EXAMPLES = (
    "abbe reproduce",
    "abbe reproduce --quick --figure 3",
    "abbe reproduce smollm2 --text war_and_peace.txt --out smollm2-figures",
)


@study(json="Print statements, times and manifest as JSON.", named_by="quick", figures_in="figures")
def reproduce(
    *,
    subject: Subject,
    figure: Annotated[
        str, setting('2a, 2b, 2c, 3, 4, several separated by commas, or "all".', autocompletion=_complete.figures)
    ] = "all",
    quick: Annotated[
        bool, setting("Fewer lengths, windows and resamples: a preview, not a result.", "--quick")
    ] = False,
    windows: Annotated[int | None, setting("Windows per length. [8, quick 2]", min=1)] = None,
    queries: Annotated[str | None, setting('Queries per window, or "all". [128, quick 16]')] = None,
) -> AnyResult:
    """Repeat the experiments of arXiv 2508.17821 on a model: figures, a page, and which of its statements hold."""
    from .. import studies

    return studies.reproduce(
        subject.model, subject.text, figures=FIGURES if figure == "all" else figure.split(","), windows=windows,
        queries=None if queries is None else count_or_all(queries), quick=quick, **subject.shared,
    )  # fmt: skip
