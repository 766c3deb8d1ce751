"""The machine: processor, threads, vectors, memory and accelerators."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from ..._kernels.switch import VARIABLE, switched_on
from ..._kernels.threads import _openmp_of_torch
from .check import Check

GROUP = "Machine"
_LITTLE_MEMORY = 2e9  # bytes: a model of 135 M parameters with its measures, and the libraries
_WIDTHS = (("avx512f", 512), ("avx", 256), ("sse2", 128), ("neon", 128))
_CPU_ONLY = "models are measured on the CPU; only abbe.normalizer and abbe.attention would use one"


def processor_check() -> Check:
    return Check("processor", "ok", f"{_processor_name()}, {available_cores()} cores for this process", group=GROUP)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def available_cores() -> int:
    """Those that this process may use, not those that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_check() -> Check:
    """More threads than cores wait for each other."""
    threads, cores = torch.get_num_threads(), available_cores()
    given = os.environ.get("OMP_NUM_THREADS")
    team = "rows are shared out over torch's own" if _openmp_of_torch() is not None else "rows use a pool of abbe's"
    found = f"{threads} of torch, {team}; OMP_NUM_THREADS {'is ' + given if given else 'is not set'}"
    if threads > cores:
        return Check("threads", "warning", found, f"only {cores} cores: set OMP_NUM_THREADS={cores}", GROUP)
    return Check("threads", "ok", found, group=GROUP)


def vectors_check() -> Check:
    """The widest vectors that the compiled kernels may use: those of this processor."""
    if not switched_on():
        advice = f"unset {VARIABLE} unless you mean it: the torch path is slower"
        return Check("kernels", "warning", f"switched off by {VARIABLE}", advice, GROUP)
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        advice = "unset NUMBA_DISABLE_JIT: kernels that are not compiled are hundreds of times slower"
        return Check("kernels", "broken", "compilation is switched off", advice, GROUP)
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    width = next((bits for feature, bits in _WIDTHS if features.get(feature)), None)
    found = f"vectors of {width} bits" if width else "no vector instructions are known"
    forced = [name for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES") if os.environ.get(name)]
    if forced:
        advice = f"unset {forced[0]} unless you mean it: the kernels are compiled for another processor"
        return Check("kernels", "warning", f"{found}, but {forced[0]} is set", advice, GROUP)
    return Check("kernels", "ok", found, group=GROUP)


def memory_check() -> Check:
    free = free_memory()
    if free is None:
        return Check("memory", "ok", "free memory is not known on this system", group=GROUP)
    found = f"{free / 1e9:.1f} GB free"
    if free < _LITTLE_MEMORY:
        return Check("memory", "warning", found, "close other programs, or measure shorter windows", GROUP)
    return Check("memory", "ok", found, group=GROUP)


def free_memory() -> int | None:
    """Bytes that a new program could have, within the limit of the container, if there is one."""
    inside = (_first_number("/sys/fs/cgroup/memory.max"), _first_number("/sys/fs/cgroup/memory.current"))
    left = [] if None in inside else [(inside[0] or 0) - (inside[1] or 0)]
    available = _first_number("/proc/meminfo", "MemAvailable:")
    if available is not None:
        left.append(1024 * available)
    return max(0, min(left)) if left else None


def _first_number(file: str, entry: str = "") -> int | None:
    try:
        lines = Path(file).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    words = next((line.removeprefix(entry).split() for line in lines if line.startswith(entry)), [])
    return int(words[0]) if words and words[0].isdigit() else None


def cuda_check() -> Check:
    """Also ROCm, which torch shows under the same name."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Check("CUDA or ROCm", "ok", ", ".join(names), "", GROUP, False)
    if torch.version.cuda or getattr(torch.version, "hip", None):
        why = "this build of torch supports one, but no device or driver was found"
        return Check("CUDA or ROCm", "missing", why, f"look at nvidia-smi or rocm-smi; {_CPU_ONLY}", GROUP, False)
    advice = f"pip install torch, in the build that pytorch.org names for your device; {_CPU_ONLY}"
    return Check("CUDA or ROCm", "missing", "this build of torch is for the CPU", advice, GROUP, False)


def mps_check() -> Check | None:
    """Apple's GPU; nothing elsewhere."""
    if platform.system() != "Darwin":
        return None
    if torch.backends.mps.is_available():
        return Check("MPS", "ok", "there", "", GROUP, False)
    built = torch.backends.mps.is_built()
    why = "this Mac or its system is too old for it" if built else "this build of torch has none"
    return Check("MPS", "missing", why, _CPU_ONLY, GROUP, False)
