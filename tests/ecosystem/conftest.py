"""Packages of others, as abbe is used with them: `make test-ecosystem` runs these tests, `make test` does not.

Nothing here may reach a network or report to anyone: these are set before a test imports its package.
"""

from __future__ import annotations

import os
import tempfile

import pytest

_folder = tempfile.TemporaryDirectory(prefix="abbe-ecosystem-")  # removed at exit

os.environ |= {
    "DO_NOT_TRACK": "true",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TRACKIO_DIR": _folder.name,
    "WANDB_DIR": _folder.name,
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What others warn of is no error; what abbe warns of is."""
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.filterwarnings("default", r"error:::abbe\b"))
