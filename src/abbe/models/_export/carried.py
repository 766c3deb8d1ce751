"""A folder that carries its plan: `AutoModelForCausalLM.from_pretrained(folder)` after `import abbe` computes with it.

What is special: its config names the model type "abbe" and an architecture of abbe, so that software without abbe
refuses the folder instead of computing with softmax. Type and architecture of the model itself are within, and the
loaded config has them, so transformers treats the network as always. The plan lies beside the weights.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from ..._errors import AbbeError
from ..._import_hooks import MODEL_TYPE
from .._plan import Plan, layers_of, write_groups
from .._session.modules import CARRIED_FILE, CARRIED_NAME
from .._session.rule import GROUPS

_PREFIX, _ENTRY, _FORMAT = "Abbe", "abbe", 1
_AUTO = ("CausalLM", "Seq2SeqLM", "MaskedLM", "TextEncoding")


def _marked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model as config.json has them in a folder with a plan."""
    own = {"model_type": settings["model_type"], "architectures": list(settings.get("architectures") or ())}
    entry = {"format": _FORMAT} | own | {"plan": CARRIED_FILE}
    names = [_PREFIX + name for name in own["architectures"]]
    return settings | {_ENTRY: entry, "model_type": MODEL_TYPE, "architectures": names}


def write_carried(network: Any, plan: Plan, folder: Path) -> None:
    """Weights and settings of the network, and the plan beside them."""
    network.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(_marked(json.loads(path.read_text("utf-8"))), indent=2) + "\n", encoding="utf-8")
    plan.save(folder / CARRIED_FILE)


def carried_config(settings: dict[str, Any], **options: Any) -> Any:
    """The result of AutoConfig for the model type "abbe", an export with a plan: the settings of the model itself.

    Args:
        settings: of its config.json.
        options: of `from_pretrained`.

    Returns:
        The configuration of the model itself.

    Raises:
        AbbeError: the folder is damaged, or has another format.

    Examples:
        >>> abbe.models.carried_config({"model_type": "abbe"})
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: config.json has no plan that this abbe can read; export the model again
    """
    settings = dict(settings)
    entry = settings.pop(_ENTRY, None)
    if not isinstance(entry, dict) or entry.get("format") != _FORMAT or entry.get("plan") != CARRIED_FILE:
        raise AbbeError("config.json has no plan that this abbe can read; export the model again")
    requested = options.pop("attn_implementation", None)
    if requested not in (None, CARRIED_NAME):
        raise AbbeError(
            f"this folder computes with the normalizers of its plan, not with attn_implementation={requested!r}; "
            "for softmax, load it without and call set_attn_implementation('sdpa')"
        )
    kind, architectures = entry.get("model_type"), entry.get("architectures")
    if not isinstance(kind, str) or not isinstance(architectures, list) or not architectures:
        raise AbbeError("config.json is damaged: its entry 'abbe' does not name the model's type and architecture")
    own = {"model_type": kind, "architectures": architectures, "attn_implementation": CARRIED_NAME}
    return _config_class(kind, str(architectures[0])).from_dict(settings | own, **options)


class _Config:
    """Mixed into a config class: config.json says that there is a plan."""

    def to_json_string(self, use_diff: bool = True) -> str:
        written: str = super().to_json_string(use_diff)  # type: ignore[misc]
        return json.dumps(_marked(json.loads(written)), indent=2, sort_keys=True) + "\n"


class _Model:
    """Mixed into a model class: it reads and writes its plan with its weights."""

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        result = super().from_pretrained(name, *args, **options)  # type: ignore[misc]
        _attach(result[0] if isinstance(result, tuple) else result, _plan_file(name, options))
        return result

    def save_pretrained(self, folder: str | os.PathLike[str], *args: Any, **options: Any) -> None:
        super().save_pretrained(folder, *args, **options)  # type: ignore[misc]
        network: Any = self
        layers = layers_of(network)
        groups = {layer: getattr(layer.module, GROUPS, None) for layer in layers}
        if any(one is None for one in groups.values()):
            raise AbbeError("this model has no plan: load it with from_pretrained, from the folder of an export")
        write_groups(Path(folder) / CARRIED_FILE, groups, type(self).__name__)  # type: ignore[arg-type]

    @classmethod
    def is_custom_code(cls) -> bool:
        """False, so that transformers renames weights as for its own class; those not found it would draw at random."""
        return False


def _attach(network: nn.Module, path: str) -> None:
    """Give every attention module the normalizers of its heads; they do not join its parameters or state."""
    for layer, groups in Plan(network, f"file:{path}").by_layer.items():
        for group in groups:
            if group.normalizer is not None:
                group.normalizer.requires_grad_(False)
        layer.module.__dict__[GROUPS] = groups


def _plan_file(name: str | os.PathLike[str], options: dict[str, Any]) -> str:
    """In the folder, or from the same place on the hub as the weights."""
    if Path(name).is_dir():
        return str(Path(name, options.get("subfolder") or "", CARRIED_FILE))
    from transformers.utils.hub import cached_file

    hub = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
    return str(cached_file(str(name), CARRIED_FILE, **{key: options[key] for key in hub if key in options}))


@lru_cache(maxsize=64)
def _config_class(kind: str, architecture: str) -> Any:
    """The config class of a model type in the variant that carries a plan, registered with the auto classes."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    base, network = CONFIG_MAPPING[kind], getattr(transformers, architecture, None)
    if network is None:
        raise AbbeError(f"this version of transformers has no {architecture}")
    # Names as in transformers: losses, conversions and tokenizers are looked up by them.
    config: Any = type(base.__name__, (_Config, base), {"__module__": __name__})
    model: Any = type(network.__name__, (_Model, network), {"__module__": __name__, "config_class": config})
    for name in (*(f"AutoModelFor{task}" for task in _AUTO), "AutoModel"):
        auto = getattr(transformers, name)
        known = auto._model_mapping.get(base, ())
        if network in (known if isinstance(known, (tuple, list)) else (known,)):
            auto.register(config, model, exist_ok=True)
    return config
