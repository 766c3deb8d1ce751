"""Compiled kernels in processes of their own: cold and warm caches, switched off, and what happens when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from inside import kernels_switch as switch
from normalizer_cases import CASES, slow
from safetensors.torch import load_file

import abbe

# Weights and gradients at the lengths where two copies of a helper used to round differently.
_BITS = """
import sys, torch, abbe
from safetensors.torch import save_file
found = {}
for spec in sys.argv[2:]:
    made = abbe.normalizer(spec)
    for keys in (16, 17, 24, 33, 40, 64, 65):
        rows = torch.randn(3, 1366, keys, generator=torch.Generator().manual_seed(keys)).mul_(3).requires_grad_()
        weights = made(rows)
        grads = torch.autograd.grad(weights.square().sum(), [rows, *made.parameters()])
        for i, part in enumerate([weights.detach(), *grads]):
            found[f"{spec} {keys} {i}"] = part.contiguous()
save_file(found, sys.argv[1])
"""

_ONE = """
import warnings, torch, abbe
rows = torch.randn(600, 128, generator=torch.Generator().manual_seed(0))
with warnings.catch_warnings(record=True) as seen:
    weights = abbe.normalizer("sparsemax")(rows)
assert (weights - abbe.normalizer("sparsemax")(rows.double())).abs().max() < 1e-6
print(len(seen), *(one.message for one in seen))
"""

# Every way to the kernels: weights, gradients, a blend, counts of keys, and the rows of a measure.
_ALL_PATHS = """
import sys, warnings, torch, abbe
from abbe import measures
BREAK
warnings.simplefilter("always")
rows = torch.randn(1, 600, 128, generator=torch.Generator().manual_seed(0))
with warnings.catch_warnings(record=True) as seen:
    for spec in ("ssmax:learn=true", "sparsemax", "hybrid:a=softmax,b=sparsemax,mix=0.25"):
        made, leaf = abbe.normalizer(spec), rows.clone().requires_grad_()
        weights = made(leaf)
        weights.square().sum().backward()
        exact, again = abbe.normalizer(spec).double(), rows.double().requires_grad_()
        wanted = exact(again)
        wanted.square().sum().backward()
        assert (weights - wanted).abs().max() < 1e-6 and (leaf.grad - again.grad).abs().max() < 1e-5, spec
    attended = measures.Rows(rows, torch.softmax(rows, -1), torch.randn(1, 128, 8))
    sets = measures.choose_sets(attended, (1, 5), torch.Generator().manual_seed(0))
    measures.geometry(attended, sets)
    measures.sensitivity(attended, abbe.normalizer("softmax"), (1.0,), torch.Generator().manual_seed(0))
print(len(seen), *(one.message for one in seen))
print("numba" in sys.modules)
"""


def run(code: str, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "specs",
    [slow(("scaled:of=entmax:alpha=1.5,t=0.3,learn=true",)), slow(tuple(map(str, CASES)))],
    ids=["entmax", "all"],
)
def test_a_cold_cache_gives_the_bits_of_a_warm_one(specs: tuple[str, ...], tmp_path: Path) -> None:
    """A run that is resumed on another day must go on with the same bits.

    Nothing but the C functions is kept: a helper that were kept by itself could be compiled into others when only some
    of the cache is warm, with other bits.
    """
    cache, results = tmp_path / "cache", []
    for name in ("cold", "warm"):
        run(_BITS, str(tmp_path / name), *specs, NUMBA_CACHE_DIR=str(cache))
        results.append(load_file(tmp_path / name))
    cold, warm = results
    assert len(cold) >= 2 * 7 * len(specs)
    assert [name for name in cold if not torch.equal(cold[name], warm[name])] == []
    kept = [file.name for file in cache.rglob("*.nb?")]
    assert len(kept) >= 4
    assert [name for name in kept if ".entry_of_" not in name] == []


def test_switched_off() -> None:
    """No kernel is compiled, nothing is said, and the numbers are right."""
    count, imported = run(_ALL_PATHS.replace("BREAK", ""), ABBE_KERNELS="off").splitlines()
    assert (count, imported) == ("0", "False")


def test_a_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("", None), (" ON ", True), ("off", False), ("maybe", None)):
        monkeypatch.setenv("ABBE_KERNELS", given)
        if wanted is not None:
            assert switch._setting() == wanted
            continue
        with pytest.raises(abbe.AbbeError, match=f"^ABBE_KERNELS must be on or off, got {given!r}$"):
            switch._setting()


BREAKS = {
    "nowhere to keep them": "import numba.core.caching as c; c.CacheImpl._locator_classes = []",
    "no compiler": "import abbe._kernels.calls, sys; sys.modules['numba'] = None; "
    "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('abbe._kernels.vector')]",
    "a compiler that fails": "import abbe._kernels.compiled as e; e.entry = lambda *a: 1 / 0",
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", BREAKS)
def test_without_kernels_abbe_goes_on_and_says_so_once(how: str) -> None:
    """Read-only home and site-packages leave numba no folder to keep compiled code in."""
    first, _ = run(_ALL_PATHS.replace("BREAK", BREAKS[how])).splitlines()
    assert first.startswith("1 abbe continues without its compiled kernels, more slowly: ")
    assert ("set NUMBA_CACHE_DIR to a folder" in first) == (how == "nowhere to keep them")


@pytest.mark.slow  # quick: "nowhere to keep them", above
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become a user with fewer rights")
def test_a_home_and_a_package_that_are_read_only() -> None:
    """For real: from here on the process is that of a user who may write neither beside the source nor at home."""
    become_nobody = "import numba, os, torch; os.setuid(65534)\n"
    variables = {"HOME": "/proc", "XDG_CACHE_HOME": "/proc", "NUMBA_CACHE_DIR": ""}
    said = run(become_nobody + _ONE, **variables)
    assert said.startswith("1 abbe continues without its compiled kernels, more slowly: cannot cache function")


@pytest.mark.slow
def test_a_damaged_cache(tmp_path: Path) -> None:
    """Files that were cut short, as by a full disk: one warning, right numbers."""
    variables = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert run(_ONE, **variables) == "0\n"
    files = list(tmp_path.rglob("*.nb?"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:40])
    assert run(_ONE, **variables).startswith("1 abbe continues without its compiled kernels")
