"""Made-up reports, their charts, and one open in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_report as made
import pytest
from page_in_browser import Opened, Seen, opener
from report_in_browser import made_up

from abbe.studies import Report
from abbe.views import page
from abbe.views.theme import ThemeName


@pytest.fixture(scope="session")
def whole() -> Report:
    return made.report()


@pytest.fixture(scope="session")
def specs(whole: Report) -> dict[ThemeName, dict[str, Any]]:
    return made.page_charts(whole)


@pytest.fixture(scope="session")
def report() -> Report:
    return made_up()


@pytest.fixture(scope="session")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.page_file(report, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def shared(browser: Any, file: Path) -> Iterator[Seen]:
    """One light page with all charts, for tests that hold whatever others have chosen on it."""
    with opener(browser, file) as open_page:
        yield open_page().ready().drawn("light").printed()


@pytest.fixture
def seen(opened: Opened) -> Seen:
    return opened().ready()


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return page(report)
