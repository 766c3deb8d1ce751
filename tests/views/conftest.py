"""Pages open in the browser that all tests of a worker share: each in its own context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_in_browser import Opened, opener


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    """Opens the file of the test module, or another one."""
    with opener(browser, file) as open_page:
        yield open_page
