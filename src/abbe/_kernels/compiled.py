"""Compiling kernels: numba with vectors as wide as the processor's, inlined helpers, and a C function for every kernel.

Threads of any runtime can call the C function without holding the GIL. It reads one block of 64-bit integers, the
`work`: the next share, the number of shares, the number of rows, then the address and the sizes of every array. Each
caller takes shares of the rows until none is left.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic

# Sums may be reordered (this is what vectorises them); NaN and infinities keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}


def _sources(file: str) -> tuple[tuple[str, float, int], ...]:
    """Name, time and size of everything that a kernel in `file` may inline: its folder, and this one."""
    folders = dict.fromkeys((Path(file).parent, Path(__file__).parent))
    files = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    return tuple((path.name, path.stat().st_mtime, path.stat().st_size) for path in files)


class _WideLower(Lower):  # type: ignore[misc]
    """Lets loops use vectors of 512 bits where the processor has them: LLVM would stop at 256."""

    def lower_normal_function(self, fndesc: Any) -> None:
        super().lower_normal_function(fndesc)
        set.add(self.function.attributes, '"prefer-vector-width"="512"')  # its own `add` rejects this attribute


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that is only inlined elsewhere, never called: it is optimised, but not turned into machine code."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _WideLowering(NativeLowering):  # type: ignore[misc]
    _name = "abbe_wide_lowering"

    def run_pass(self, state: Any) -> bool:
        flags, context, name = state.flags, state.targetctx, state.func_id.func_qualname
        if not (flags.no_cpython_wrapper and flags.no_cfunc_wrapper):
            return bool(super().run_pass(state))
        state.library, flags.no_compile = _PartLibrary(context.codegen(), name), True
        super().run_pass(state)
        result = state["cr"]
        # numba looks functions up by their Python callable: here `format` of a string, which fails with that message.
        key = f"{{{name} can only be called by compiled code}}".format
        context.insert_user_function(key, result.fndesc, [state.library])
        state["cr"] = result._replace(cfunc=key)
        return True

    @property
    def lowering_class(self) -> Any:
        return _WideLower


class WideCompiler(CompilerBase):  # type: ignore[misc]
    """numba's default pipeline, with the lowering above."""

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.passes = [(_WideLowering, why) if step is NativeLowering else (step, why) for step, why in steps.passes]
        # The builder is finalized already, and there is no public way to change it.
        steps._finalized = False
        steps.finalize()
        return [steps]


def part(function: Any, **options: Any) -> Any:
    """Compile a function that only compiled functions call: no entry from Python, no machine code, no cache."""
    no_wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(**options, **no_wrappers, error_model="numpy", pipeline_class=WideCompiler)(function)


def kernel(function: Any) -> Any:
    """Compile a kernel or a helper called once per row. Only the C function around a kernel (`entry`) is cached.

    Always inlined. Otherwise a helper exists twice, compiled alone and again inside its caller, with different
    rounding; the process that compiles would call the first copy, a process that loads from the cache the second.
    """
    return part(function, nogil=True, fastmath=SUMS, forceinline=True)


def inlined(function: Any) -> Any:
    """A piece of a kernel that numba copies into its caller before LLVM sees it.

    LLVM optimises a `kernel` alone before inlining it, and may order its sums and products differently.
    """
    return njit(inline="always")(function)


def stamp_cache(compiled: Any, function: Any) -> None:
    """numba only checks whether the function's own file changed, but a kernel inlines others: check all files."""
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _sources(function.__code__.co_filename)


def from_source(source: str, name: str, file: str, scope: dict[str, Any]) -> Any:
    """Define a function from source text, attributed to `file`: numba only caches functions that have a file."""
    scope.setdefault("__name__", "abbe")
    exec(compile(source, file, "exec"), scope)
    return scope[name]


def around(function: Any, piece: str, source: str, scope: dict[str, Any]) -> Any:
    """A function from source text that calls `function` as `piece` and takes over its name and module."""
    scope |= {"__name__": function.__module__, piece: inlined(function)}
    wrapper = from_source(source, function.__name__, function.__code__.co_filename, scope)
    wrapper.__doc__, wrapper.__annotations__ = function.__doc__, function.__annotations__
    return wrapper


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
