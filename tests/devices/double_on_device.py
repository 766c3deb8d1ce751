"""Checks of a device that has no float64."""

from __future__ import annotations

from unittest import mock

import models_on_device
import studies_on_device
from device_checks import DEVICE, Checks, torch_path
from inside import float64_module

checks = Checks()


def without_double(name: str) -> None:
    """A check, on a device that has no float64: the rows are measured on the CPU."""
    from pretend_device import PretendTensor

    with (
        mock.patch.object(PretendTensor, "has_double", False),
        mock.patch.object(float64_module, "has_float64", lambda device: device.type != DEVICE),
        torch_path(),  # of the rows that are on the CPU then
    ):
        _WITH_DOUBLE[name]()


_WITH_DOUBLE = Checks()
for _module in (models_on_device, studies_on_device):
    _WITH_DOUBLE.join(_module.checks)
_PATHS = "tap llama", "swap llama", "diagnose gpt-oss", "diagnose outputs", "diagnose as entmax", "monitor llama"
for _name in (*_PATHS, "report", "capacity", "compare", "calibrate"):
    checks.add(f"{_name} without float64", _name)(without_double)
