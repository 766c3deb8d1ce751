"""Checks of a device that has no float64: the rows are measured on the CPU."""

from __future__ import annotations

import layers_on_devices
import models_on_device
import studies_on_device
from device_checks import Checks, without_double

checks = Checks()


def run_without_double(name: str) -> None:
    with without_double():
        _WITH_DOUBLE[name]()


_WITH_DOUBLE = Checks()
for _module in (models_on_device, studies_on_device, layers_on_devices):
    _WITH_DOUBLE.join(_module.checks)
_PATHS = "tap llama", "swap llama", "diagnose gpt-oss", "diagnose outputs", "diagnose as entmax", "monitor llama"
_SPREAD = "diagnose", "report", "capacity", "compare"  # calibrate needs float64
_SPREAD_NAMES = tuple(
    name
    for name in layers_on_devices.checks
    if name.startswith(_SPREAD) and ("second device" in name or "on CPU and device" in name)
)
for _name in (*_PATHS, *_SPREAD_NAMES, "report", "capacity", "compare"):
    checks.add(f"{_name} without float64", _name)(run_without_double)
