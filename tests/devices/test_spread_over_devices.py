"""A model that is spread over devices is measured where its layers are; also where float64 is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "spread_over_devices.py"
FOLDERS = (HERE, HERE.parent / "studies", HERE.parent / "models", HERE.parent)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (HERE / "pretend_device.py").is_file(), reason="there is no pretend_device.py here"),
]


@cache
def answers(*words: str) -> dict[str, str]:
    """By study, from a process of its own, which alone knows the devices."""
    path = os.pathsep.join([*map(str, FOLDERS), *sys.path])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize("study", ["diagnose", "embedding", "output", "report", "capacity", "compare", "calibrate"])
def test_a_spread_model_gives_the_numbers_of_the_cpu(study: str) -> None:
    assert answers()[study] == "same"


@pytest.mark.parametrize("study", ["diagnose", "embedding", "output", "report", "capacity", "compare"])
def test_a_device_without_float64_is_measured_on_the_cpu(study: str) -> None:
    assert answers("no-float64")[study] == "same"


def test_calibrate_says_that_float64_is_missing() -> None:
    why = "AbbeError: pretend:0 has no float64, which the fit needs for its sums: calibrate with device cpu"
    assert answers("no-float64")["calibrate"] == why
