"""Hooks into packages of others that run once these have been imported, without importing them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "abbe"  # of folders that contain a plan


def when_imported(module: str, then: Callable[[], object]) -> None:
    """Call `then` at once if the module is loaded, else as soon as it has been; once per module."""
    if module in sys.modules:
        then()
    elif not any(isinstance(finder, _Watcher) and finder.module == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(module, then))


class _Watcher(MetaPathFinder):
    """Leaves finding the module to the other finders, and runs `then` after it was loaded."""

    def __init__(self, module: str, then: Callable[[], object]) -> None:
        self.module, self._then = module, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            # On the instance: this loader serves only this module.
            vars(spec.loader)["exec_module"] = partial(self._load, spec.loader.exec_module)
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        if self in sys.meta_path:  # only now: another program may look for the module without loading it
            sys.meta_path.remove(self)
        self._then()


def register_model_type() -> None:
    """Let transformers' AutoConfig read folders of MODEL_TYPE."""

    class Carried:
        """Stands in for a config class of transformers."""

        model_type = MODEL_TYPE

        @classmethod
        def from_dict(cls, settings: dict[str, Any], **options: Any) -> Any:
            # Imported for the first such folder: loading just a tokenizer does not wait for torch.
            return importlib.import_module("abbe.models").carried_config(settings, **options)

    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    auto.CONFIG_MAPPING.register(MODEL_TYPE, Carried, exist_ok=True)


def register_harness_model() -> None:
    """Let lm-eval find its model `abbe`, which is imported when somebody asks for it."""
    registry = importlib.import_module("lm_eval.api.registry").model_registry
    registry.register("abbe", target="abbe.studies._eval.harness:AbbeLM")
