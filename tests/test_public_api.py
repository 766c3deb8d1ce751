"""The public names, and what an import costs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import abbe
import abbe.entmax
import abbe.measures
import abbe.models
import abbe.studies

PUBLIC = {
    *("AbbeError", "Normalizer", "NormalizerInfo", "attention", "list_normalizers", "normalizer"),
    *("LoadedModel", "Plan", "Swap", "Tap", "Text", "Window"),
    *("load", "plan", "pull", "read_text", "swap", "tap", "windows"),
    *("Calibration", "Capacity", "Comparison", "calibrate", "capacity", "compare"),
    *("Difference", "Evaluation", "Export", "Lift", "diff", "evaluate", "export", "lift"),
    *("Reports", "cost", "merge", "on_ray", "report_each", "shard"),
    *("Report", "Reproduction", "Result", "Run", "diagnose", "open", "open_run", "report", "reproduce"),
    *("Experiment", "Monitor", "doctor", "verify"),
    *("train_length", "train_recall", "train_temperature", "train_text"),
}


def test_public_names_are_these() -> None:
    assert set(abbe.__all__) == PUBLIC
    assert len(abbe.__all__) == len(set(abbe.__all__))
    assert all(hasattr(abbe, name) for name in abbe.__all__)


def test_nothing_else_is_exported() -> None:
    """Apart from submodules and names with an underscore."""
    modules = {module.name for module in pkgutil.iter_modules(abbe.__path__)}
    assert {name for name in dir(abbe) if not name.startswith("_")} - modules == PUBLIC


@pytest.mark.slow
def test_submodules_are_found_on_first_use() -> None:
    names = ("bounds", "entmax", "measures", "models", "normalizers", "results", "studies", "training", "views")
    code = f"import abbe, sys; print([getattr(abbe, name).__name__ for name in {names!r}])"
    assert in_a_fresh_process(code) == str([f"abbe.{name}" for name in names])
    assert set(names) <= set(dir(abbe))


def test_star_import_gives_the_public_names() -> None:
    """In this process: that each name can be looked up in a fresh one, test_extras.py shows."""
    space: dict[str, object] = {}
    exec("from abbe import *", space)
    assert {name for name in space if not name.startswith("_")} == PUBLIC


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, abbe; dir(abbe); print({'torch', 'numpy', 'polars', 'transformers'} & set(sys.modules))"
    assert in_a_fresh_process(code) == "set()"


@pytest.mark.slow
def test_a_name_is_looked_up_once() -> None:
    code = "import abbe; made = abbe.normalizer; print('normalizer' in vars(abbe), made is abbe.normalizers.normalizer)"
    assert in_a_fresh_process(code) == "True True"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'diagnos'"):
        abbe.diagnos  # noqa: B018


def test_no_public_name_is_a_submodule() -> None:
    for package in (abbe, abbe.entmax, abbe.normalizers, abbe.measures, abbe.models, abbe.studies):
        modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not modules & set(package.__all__)


def in_a_fresh_process(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return run.stdout.strip()


def test_import_and_small_calls_do_not_load_numba() -> None:
    code = """
import sys, abbe
assert not {"numba", "polars", "transformers"} & set(sys.modules), "import"
import torch
x = torch.randn(8, 64, requires_grad=True)
for spec in ("softmax", "entmax:alpha=1.3", "sparsemax", "topk:k=3", "ssmax", "sigmoid", "asentmax"):
    abbe.normalizer(spec)(x).square().sum().backward()
assert "numba" not in sys.modules, "small call"
abbe.normalizer("sparsemax")(torch.randn(1024, 128))
print("numba" in sys.modules)
"""
    assert in_a_fresh_process(code) == "True"
