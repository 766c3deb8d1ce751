"""Tap, swap, generation, studies and monitor on a device that is not the CPU."""

from __future__ import annotations

import pytest
from device_checks import answers, selected
from models_on_device import checks


@pytest.fixture(scope="module")
def errors(request: pytest.FixtureRequest) -> dict[str, str]:
    return answers("models_on_device", selected(request))


@checks.parameters()
def test_a_device_gives_the_numbers_of_the_cpu(name: str, errors: dict[str, str]) -> None:
    assert errors[name] == ""
