"""A C function for every kernel, which threads of any runtime can call without holding the GIL.

It reads one block of 64-bit integers, the `work`: the next share, the number of shares, the number of rows, then the
address and the sizes of every array. Each caller takes shares of the rows until none is left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from .compiled import SUMS, WideCompiler, from_source, stamp_cache

_HEADER = 3  # numbers of the work before the arrays: next share, shares, rows
_OPTIONS = {"nopython": True, "fastmath": SUMS, "error_model": "numpy"}
_TEMPLATE = """
def {name}(data):
    work = carray(data, {size}, int64)
    {arrays}
    shares, rows = work[1], work[2]
    while True:
        share = take_share(work.ctypes.data)
        if share >= shares:
            return
        kernel({names}, rows * share // shares, rows * (share + 1) // shares)
"""


@intrinsic
def as_pointer(_typing: Any, _address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def take_share(_typing: Any, _address: Any) -> Any:
    """Read and increment the number at an address, atomically: no two threads get the same."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "seq_cst")

    return types.int64(types.uintp), generate


@cache
def entry(kernel: Any, arrays: tuple[tuple[str, int], ...]) -> Any:
    """The C function for a kernel whose arrays have these dtypes (names) and dimensions.

    The source is generated, but attributed to the kernel's file and without a closure, so that numba can cache it.
    """
    lines, place = [], _HEADER
    for i, (dtype, dimensions) in enumerate(arrays):
        shape = ", ".join(f"work[{place + 1 + d}]" for d in range(dimensions))
        lines.append(f"a{i} = carray(as_pointer(work[{place}]), ({shape},), {dtype})")
        place += 1 + dimensions
    name = "_".join(["entry_of", kernel.py_func.__name__, *(f"{dtype}_{dimensions}" for dtype, dimensions in arrays)])
    names = ", ".join(f"a{i}" for i in range(len(arrays)))
    source = _TEMPLATE.format(name=name, size=place, arrays="\n    ".join(lines), names=names)
    scope: dict[str, Any] = {"carray": carray, "as_pointer": as_pointer, "take_share": take_share, "kernel": kernel}
    scope |= {dtype: getattr(np, dtype) for dtype in {"int64", *(dtype for dtype, _ in arrays)}}
    function = from_source(source, name, kernel.py_func.__code__.co_filename, scope)
    compiled = CFunc(function, ((types.voidptr,), types.void), {}, _OPTIONS, WideCompiler)
    compiled.enable_caching()
    stamp_cache(compiled, kernel.py_func)
    # Now, under the caller's `loading`: a failure must not surface in a thread.
    compiled.compile()
    return compiled
