"""Do something once a module of another package has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(module: str, then: Callable[[], object]) -> None:
    """Call `then` at once if the module is there, else as soon as it has been loaded; once for each module."""
    if module in sys.modules:
        then()
    elif not any(isinstance(finder, _Watcher) and finder.module == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(module, then))


class _Watcher(MetaPathFinder):
    """Finds nothing itself: it sees to it that something is done after the module was loaded."""

    def __init__(self, module: str, then: Callable[[], object]) -> None:
        self.module = module
        self._then = then
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            # Of this loader alone, which serves this module alone.
            vars(spec.loader)["exec_module"] = self._and_then(spec.loader.exec_module)
        return spec

    def _and_then(self, load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._then()

        return exec_module
