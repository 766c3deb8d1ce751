"""Calls of the compiled kernels: whether they are used at all, and rows split over threads.

On, switched off by ABBE_KERNELS=off, or given up because they do not work. Every kernel has a torch reference with the
same signature, so only speed depends on them. Failures come from outside: a numba that cannot be imported or cannot
compile, a damaged cache of compiled code, no writable folder for that cache. The first failure gives one warning; from
then on the references are used.

There are as many threads as torch uses, and if possible they are torch's own. After its last task a thread of torch's
OpenMP team keeps spinning for some milliseconds, on a core that threads of ours would need. So the rows go to that same
team (GNU OpenMP, as in torch's Linux builds), through the entry point that compilers use. Elsewhere, and in a forked
child, a small pool does the work. numba's parallel loops would abort the process when two Python threads enter them at
once, and bring a second OpenMP runtime.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._errors import AbbeError

VARIABLE = "ABBE_KERNELS"


class KernelsBrokenError(Exception):
    """Kernels do not work here; the warning was given, and the caller uses the reference."""


def _setting() -> bool:
    setting = os.environ.get(VARIABLE, "on").strip().lower()
    if setting not in ("on", "off"):
        raise AbbeError(f"{VARIABLE} must be on or off, got {setting!r}")
    return setting == "on"


_on = _setting()
_broken = False


def usable() -> bool:
    """Whether the kernels are switched on and have not failed so far."""
    return _on and not _broken


def usable_for(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: all on the CPU, other devices use the references."""
    for tensor in tensors:  # a plain loop: torch.compile traces it
        if tensor.device.type != "cpu":
            return False
    return usable()


def switched_on() -> bool:
    return _on


@contextmanager
def loading() -> Iterator[None]:
    """Around all that imports, compiles or loads kernels: any failure becomes a KernelsBrokenError."""
    try:
        yield
    except KernelsBrokenError:
        raise
    except Exception as error:
        _give_up(error)
        raise KernelsBrokenError from error


def load(module: str, name: str) -> Any:
    with loading():
        return getattr(importlib.import_module(module), name)


def reason_of(error: Exception) -> str:
    """The first line of an error's message: compilers write many."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _give_up(error: Exception) -> None:
    global _broken
    if _broken:
        return
    _broken = True
    reason = reason_of(error)
    advice = (
        "set NUMBA_CACHE_DIR to a folder that you may write to"
        if "cannot cache function" in reason or isinstance(error, PermissionError)
        else "`abbe doctor` looks for the cause; an empty folder as NUMBA_CACHE_DIR avoids damaged files"
    )
    warnings.warn(
        f"abbe continues without its compiled kernels, more slowly: {reason} ({advice}; {VARIABLE}=off silences this)",
        RuntimeWarning,
        stacklevel=2,
    )


_SHARE = 1 << 14  # numbers of the first tensor per share, at least
_SHARES = 4  # per thread, so that a thread that is held up leaves the rest to the others

_forked = False
_pool: ThreadPoolExecutor | None = None
_pool_size = 0

_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool_",
}


def over_rows(kernel: Any, rows: int, *tensors: Tensor, shares: int = 0) -> None:
    """Run kernel(*arrays, start, stop) over all rows, in shares that the threads take one after the other.

    Four shares per thread; `shares` asks for more, if some rows are more work than others. The tensors are contiguous
    and on the CPU. KernelsBrokenError if the kernel cannot be compiled or loaded.
    """
    if not all(x.is_cpu for x in tensors):  # a kernel would write to wherever another device's address points
        raise TypeError(f"{kernel.__name__} takes tensors on the CPU, got {[str(x.device) for x in tensors]}")
    key = (kernel, *[part for x in tensors for part in (x.dtype, x.ndim)])
    function = _functions.get(key)
    if function is None:
        function = _functions[key] = _function(kernel, tensors)
    # Waking a thread costs more than a small share of rows.
    threads = max(1, min(torch.get_num_threads(), rows, tensors[0].numel() // _SHARE))
    shares = min(rows, max(shares, _SHARES * threads)) if threads > 1 else 1
    work = [0, shares, rows]
    for x in tensors:
        work.append(x.data_ptr())
        work.extend(x.shape)
    _run(function, _array_of(len(work))(*work), threads)


# By kernel and kinds of tensors: looking one up again takes as long as a small kernel runs.
_functions: dict[tuple[Any, ...], Any] = {}


def _function(kernel: Any, tensors: Sequence[Tensor]) -> Any:
    """The C function, compiled or loaded now."""
    with loading():
        from .compiled import entry  # loads numba

        return entry(kernel, tuple((_NAMES[x.dtype], x.dim()) for x in tensors)).ctypes


@cache
def _array_of(size: int) -> Any:
    return ctypes.c_int64 * size


def _run(function: Any, work: ctypes.Array[ctypes.c_int64], threads: int) -> None:
    """Call `function` on several threads, the calling one among them, and wait for all."""
    if threads == 1:
        function(ctypes.addressof(work))
    elif (library := _openmp_of_torch()) is not None and not _forked:
        library.GOMP_parallel(function, work, ctypes.c_uint(threads), ctypes.c_uint(0))  # 0: no flags
    else:
        helpers = _helpers(threads - 1)
        pending = [helpers.submit(function, ctypes.addressof(work)) for _ in range(threads - 1)]
        try:
            function(ctypes.addressof(work))
        finally:  # also when interrupted: no thread may write after the tensors are gone
            wait([share for share in pending if not share.cancel()])  # shares that have not begun are not needed


@lru_cache(maxsize=1)
def _openmp_of_torch() -> ctypes.CDLL | None:
    """The GNU OpenMP library that torch has loaded; None if there is none or several."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[-1] for line in mapped.splitlines() if "libgomp" in line}
    # Other packages bring a libgomp, too: the spinning team is torch's.
    paths = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)} or loaded
    if len(paths) != 1:
        return None
    library = ctypes.CDLL(paths.pop())
    return library if hasattr(library, "GOMP_parallel") else None


def _helpers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        # A smaller pool may still be in use, and is left alone.
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="abbe"), count
    return _pool


def _forget_threads() -> None:
    """A forked child has none of its parent's threads, neither ours nor OpenMP's."""
    global _forked, _pool
    _forked, _pool = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


PACKED_BY = 48  # vectors: whole panels (`sums`) on every processor


def pack(vectors: Tensor) -> Tensor:
    """(heads, whole panels of vectors times depth), from contiguous (heads, vectors, depth) in float32."""
    heads, count, depth = vectors.shape
    parts = -(-count // PACKED_BY)
    packed = torch.empty(heads, parts * PACKED_BY * depth, dtype=torch.float32)
    over_rows(load("abbe._kernels.sums", "pack_keys"), heads * parts, vectors, packed)
    return packed


@cache
def products_pay() -> bool:
    """Whether products inside a kernel keep up with torch's: they need vectors of 256 bits with fused multiply-add."""
    pay: bool = load("abbe._kernels.sums", "PAY")
    return pay
