"""What makes a kernel: numba's compiler with vectors as wide as the processor's, inlined helpers and a cache that knows
what was inlined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numba import njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

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
        set.add(self.function.attributes, '"prefer-vector-width"="512"')  # its own `add` knows no such attribute


class _PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that others link and inline and nobody calls: it is optimised, but no machine code is made of it."""

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
        made = state["cr"]
        # numba looks a function up by what Python would call: a method of a text of its own, which refuses every call.
        key = f"{{{name} can only be called by compiled code}}".format
        context.insert_user_function(key, made.fndesc, [state.library])
        state["cr"] = made._replace(cfunc=key)
        return True

    @property
    def lowering_class(self) -> Any:
        return _WideLower


class WideCompiler(CompilerBase):  # type: ignore[misc]
    """numba's own steps, but for the attribute above."""

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.passes = [(_WideLowering, why) if step is NativeLowering else (step, why) for step, why in steps.passes]
        # The builder is finished already; it has no public way to be changed.
        steps._finalized = False
        steps.finalize()
        return [steps]


def part(function: Any, **options: Any) -> Any:
    """Compile a function that only other compiled functions call: no way in from Python, no machine code, no cache."""
    nobody_calls = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(**options, **nobody_calls, error_model="numpy", pipeline_class=WideCompiler)(function)


def kernel(function: Any) -> Any:
    """Compile a kernel or a helper called once per row. Only the C function around a kernel (`entries`) is cached.

    Always inlined. Otherwise a helper exists twice, compiled by itself and once more inside its caller, with rounding
    of its own; the process that compiles would call the first copy, those that load from the cache the second.
    """
    return part(function, nogil=True, fastmath=SUMS, forceinline=True)


def inlined(function: Any) -> Any:
    """A piece of a kernel, which numba copies to where it is called, before LLVM sees it.

    LLVM would optimise a `kernel` by itself before it inlines it, and so may order sums and products in another way.
    """
    return njit(inline="always")(function)


def stamp_cache(made: Any, function: Any) -> None:
    """numba asks only whether a function's own file changed, but a kernel inlines others: ask for all files."""
    cache_file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _sources(function.__code__.co_filename)


def from_source(source: str, name: str, file: str, scope: dict[str, Any]) -> Any:
    """The function of that name in a source, which counts as part of a file: numba caches what lies in a file."""
    scope.setdefault("__name__", "abbe")
    exec(compile(source, file, "exec"), scope)
    return scope[name]


def around(function: Any, piece: str, source: str, scope: dict[str, Any]) -> Any:
    """The function of a source that calls `function` as `piece`, under the name and in the module of that function."""
    scope |= {"__name__": function.__module__, piece: inlined(function)}
    made = from_source(source, function.__name__, function.__code__.co_filename, scope)
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    return made
