"""The model type "abbe" of folders that carry a plan, known to transformers before anything of abbe is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

MODEL_TYPE = "abbe"


def register_model_type(reader: Callable[[], Callable[..., Any]]) -> None:
    """Let transformers' AutoConfig read such folders; `reader` gives the function that makes a config of settings.

    It is asked for when the first such folder is read: who only wants a tokenizer does not wait for torch.
    """

    class Carried:
        """What transformers takes for a config class."""

        model_type = MODEL_TYPE

        @classmethod
        def from_dict(cls, settings: dict[str, Any], **options: Any) -> Any:
            return reader()(settings, **options)

    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    auto.CONFIG_MAPPING.register(MODEL_TYPE, Carried, exist_ok=True)
