"""A model that is spread over devices is measured layer by layer where its layers are; also where float64 is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "spread_over_devices.py"
FOLDERS = (HERE, HERE.parent / "studies", HERE.parent / "models", HERE.parent)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (HERE / "pretend_device.py").is_file(), reason="there is no pretend_device.py to spread over"
    ),
]


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which alone knows the devices."""
    path = os.pathsep.join([*map(str, FOLDERS), *sys.path])
    command = [sys.executable, str(PROGRAM), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.parametrize("study", ["diagnose", "embedding", "output", "report", "capacity", "compare", "calibrate"])
def test_a_spread_model_gives_the_numbers_of_the_cpu(study: str) -> None:
    done = ended(study)
    assert done.stdout.endswith("same\n"), done.stderr[-2000:]


@pytest.mark.parametrize("study", ["diagnose", "embedding", "output", "report", "capacity", "compare"])
def test_a_device_without_float64_is_measured_on_the_cpu(study: str) -> None:
    done = ended(study, "no-float64")
    assert done.stdout.endswith("same\n"), done.stderr[-2000:]


def test_calibrate_says_that_float64_is_missing() -> None:
    done = ended("calibrate", "no-float64")
    assert "pretend:0 has no float64, in which the fit takes its sums: calibrate with device cpu" in done.stderr
