"""A made-up report open in a browser: `pytest_plugins = ("report_page_fixtures",)` in a test module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_report as made
import pytest
from report_in_browser import Opened, Seen, made_up, opener

from abbe.studies import Report


@pytest.fixture(scope="session")
def found() -> Report:
    return made_up()


@pytest.fixture(scope="session")
def file(found: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.page_file(found, tmp_path_factory.mktemp("page"))


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    with opener(browser, file) as found:
        yield found


@pytest.fixture(scope="session")
def shared(browser: Any, file: Path) -> Iterator[Seen]:
    """One light page with all charts, for tests that hold whatever others have chosen on it."""
    with opener(browser, file) as open_page:
        yield open_page().ready().drawn("light").printed()


@pytest.fixture
def seen(opened: Opened) -> Seen:
    return opened().ready()
