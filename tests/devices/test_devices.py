"""Every path on a device that is not the CPU, with the numbers of the CPU: all checks in one process."""

from __future__ import annotations

import importlib

import pytest
from device_checks import Checks, answers

MODULES = (
    "rows_on_device", "measures_on_device", "models_on_device", "studies_on_device", "double_on_device",
    "layers_on_devices", "lab_on_device",
)  # fmt: skip
by_module: dict[str, Checks] = {module: importlib.import_module(module).checks for module in MODULES}
checks = Checks()
for some in by_module.values():
    checks.join(some)


@pytest.fixture(scope="module")
def errors(request: pytest.FixtureRequest) -> dict[str, str]:
    """What went wrong in each check that this call of pytest asks for."""
    # Those of this file: a test of another may be about something of the same name.
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = [item.callspec.params["name"] for item in here]
    # Only where one is asked for: the process does not wait for models that no check needs.
    modules = [module for module, some in by_module.items() if not some.keys().isdisjoint(names)]
    # Quick ones alone do not compile the CPU's kernels, which takes longer than all of them.
    return answers(modules, names, kernels=not checks.quick.issuperset(names))


@checks.parameters()
def test_a_device_gives_the_numbers_of_the_cpu(name: str, errors: dict[str, str]) -> None:
    if errors[name]:
        pytest.fail(errors[name], pytrace=False)
