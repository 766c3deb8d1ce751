"""Studies whose folder also holds a page: what `abbe.report`, `abbe.compare` and `abbe.reproduce` are."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from .. import studies
from .._stored import write_whole
from ._compare.page import compare_page
from ._report.page import report_page
from ._reproduce.page import reproduction_page

REPORT, COMPARE, REPRODUCE = "report.html", "compare.html", "reproduce.html"
_P = ParamSpec("_P")
_Found = TypeVar("_Found")


def _with_page(study: Callable[_P, _Found], draw: Callable[[_Found], str], file: str) -> Callable[_P, _Found]:
    """The study, and with `folder=` its page in that folder. Studies lie below views and cannot draw it themselves."""

    @wraps(study)
    def run(*given: _P.args, **options: _P.kwargs) -> _Found:
        found = study(*given, **options)
        folder = cast("str | os.PathLike[str] | None", cast("dict[str, Any]", options).get("folder"))
        if folder is not None:
            write_whole(Path(folder) / file, draw(found))
        return found

    return run


report = _with_page(studies.report, report_page, REPORT)
compare = _with_page(studies.compare, compare_page, COMPARE)
reproduce = _with_page(studies.reproduce, reproduction_page, REPRODUCE)
