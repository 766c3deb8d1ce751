"""Checks of this machine: compiled kernels, threads, memory, the embedded model and the cache."""

from __future__ import annotations

import json
import os
import tempfile
import warnings

import torch

from ..._errors import AbbeError
from ..._kernels import switch
from ...models import EMBEDDED_FILES, cache_folder, embedded_about, embedded_folder, free_memory, read_text
from ...normalizers import normalizer
from .check import Check

_SPECS = ("softmax", "entmax:alpha=1.5", "topk:k=8")
_ROWS, _KEYS = 1024, 128  # enough for the kernels to be used
_CLOSE = 1e-5  # float32 weights against the float64 reference
_LITTLE_MEMORY = 2e9  # bytes: a model of 135 M parameters with its measures, and the libraries


def kernels_check() -> Check:
    """They compile, and agree with the float64 reference."""
    if not switch.switched_on():
        return Check("kernels", "warning", f"{switch.VARIABLE}=off", f"unset {switch.VARIABLE}: it is slower")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return Check("kernels", "broken", "NUMBA_DISABLE_JIT is set", "unset it: it is hundreds of times slower")
    logits = torch.randn(_ROWS, _KEYS, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = {spec: _error(spec, logits) for spec in _SPECS}
    if not switch.usable():
        why = next((str(one.message) for one in caught if one.category is RuntimeWarning), "they could not be compiled")
        return Check("kernels", "broken", why.partition(" (")[0], "set NUMBA_CACHE_DIR to an empty folder of yours")
    if wrong := [spec for spec, error in errors.items() if not error <= _CLOSE]:
        advice = f"set {switch.VARIABLE}=off, and report it with the versions of numba and llvmlite"
        return Check("kernels", "broken", f"wrong weights of {', '.join(wrong)}", advice)
    return Check("kernels", "ok", f"compiled; largest error {max(errors.values()):.0e}")


def _error(spec: str, logits: torch.Tensor) -> float:
    instance = normalizer(spec)
    return float((instance(logits) - instance(logits.double())).abs().max())


def threads_check() -> Check:
    """More threads than cores wait for each other."""
    threads, cores = torch.get_num_threads(), available_cores()
    if threads > cores:
        return Check("threads", "warning", f"{threads} on {cores} cores", f"set OMP_NUM_THREADS={cores}")
    return Check("threads", "ok", f"{threads} on {cores} cores")


def available_cores() -> int:
    """Cores that this process may use, not all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_check() -> Check:
    free = free_memory(torch.device("cpu"))
    if free is None:
        return Check("memory", "ok", "not known on this system")
    detail = f"{max(0.0, free) / 1e9:.1f} GB free"
    if free < _LITTLE_MEMORY:
        return Check("memory", "warning", detail, "close other programs, or measure shorter windows")
    return Check("memory", "ok", detail)


def embedded_check() -> Check:
    """All files are there, and the weights have their full length."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return Check("embedded model", "missing", "cannot be read without safetensors", "pip install 'abbe[models]'")
    try:
        folder = embedded_folder()
        for file in EMBEDDED_FILES:
            if file.endswith(".json"):
                json.loads((folder / file).read_text(encoding="utf-8"))
        safe_open(folder / "model.safetensors", framework="pt")
        read_text()
        about = embedded_about().partition(", trained")[0]
    except (AbbeError, OSError, ValueError, SafetensorError) as error:
        return Check("embedded model", "broken", str(error), "install abbe again: pip install --force-reinstall abbe")
    return Check("embedded model", "ok", about)


def cache_check() -> Check:
    """Where pulled models go: tested by writing, since permissions say nothing about a read-only disk."""
    folder = cache_folder()
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        advice = "set ABBE_CACHE to a folder that you may write to"
        return Check("cache", "warning", f"{folder}: {error.strerror or error}", advice)
    return Check("cache", "ok", str(folder))
