"""Studies that measure nothing, for tests of what commands ask for and print."""

from __future__ import annotations

import inspect
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import StandIn

import abbe
from abbe import studies, views


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Replaces a study, the terminal and figures: what the study is asked for, what is drawn and opened."""

    def replace(study: str, content: dict[str, Any], *, file: str = "") -> dict[str, Any]:
        requests: dict[str, Any] = {}
        signature = inspect.signature(getattr(studies, study))
        kind = abbe.Result.known[study.partition("_")[0]]
        result = StandIn(kind.study, content, offers=kind.offers)

        def measure(**options: Any) -> StandIn:
            signature.bind(**options)  # the study takes them
            requests.update(options)
            options["folder"].mkdir(parents=True, exist_ok=True)
            result.file = options["folder"] / file if file else None  # type: ignore[attr-defined]
            return result

        def save(shown: StandIn, folder: Path) -> None:
            assert shown is result
            requests["drawn in"] = folder

        monkeypatch.setattr(studies, study, measure)
        monkeypatch.setattr(views, "terminal", lambda shown: "THE TABLE" * (shown is result))
        monkeypatch.setattr(views, "figures", save)
        monkeypatch.setattr(webbrowser, "open", lambda address: requests.update(opened=address) or True)
        return requests

    return replace
