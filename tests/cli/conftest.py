"""Studies that measure nothing, for tests of what commands ask for and print."""

from __future__ import annotations

import inspect
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import StandIn

from abbe import studies, views


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Replaces a study and its views: what the study is asked for, what is drawn and opened."""

    def replace(study: str, content: dict[str, Any], *, view: str = "", file: str = "") -> dict[str, Any]:
        requests: dict[str, Any] = {}
        result, signature = StandIn(study, content), inspect.signature(getattr(studies, study))

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
        monkeypatch.setattr(views, f"{view or study}_table", lambda shown: "THE TABLE" * (shown is result))
        monkeypatch.setattr(views, "save_figures", save)
        monkeypatch.setattr(webbrowser, "open", lambda address: requests.update(opened=address) or True)
        return requests

    return replace
