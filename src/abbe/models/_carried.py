"""A network that carries its plan: into the folders that it is saved to, and out of them.

What is special: the config.json of such a folder names the model type "abbe" and an architecture of abbe, so that
software without abbe refuses the folder instead of computing with softmax. Type and architecture of the model itself
are within, and the loaded config has them, so transformers treats the network as always. The plan lies beside the
weights. `save_pretrained` writes both while it writes config.json, so an upload has them, too.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .._errors import AbbeError
from .._files import write_whole
from .._import_hooks import MODEL_TYPE
from ._load.folder import ADAPTER
from ._network import changed
from ._plan import Groups, Normalizers, Plan, layers_of, write_groups
from ._session import models_within
from ._session.call import Rule
from ._session.modules import CARRIED_FILE, CARRIED_NAME, configs_within
from ._session.rule import GROUPS, SWAPPED, has_rule, put, standing_rule

_PREFIX, _ENTRY, _FORMAT = "Abbe", "abbe", 1
_AUTO = ("CausalLM", "Seq2SeqLM", "MaskedLM", "TextEncoding")


def hold(network: Any, groups_of: Groups, undo: ExitStack) -> None:
    """Let a network hold these normalizers as a part, with their parameters and state, until `undo` closes."""
    if SWAPPED not in network._modules:
        undo.callback(network.register_load_state_dict_pre_hook(_check_state).remove)
        undo.callback(network.register_state_dict_pre_hook(_see_adapters).remove)
    put(network._modules, SWAPPED, Normalizers(groups_of).train(network.training), undo)
    undo.callback(_leave_adapters, network)


def save_plans(network: nn.Module, undo: ExitStack) -> None:
    """Let `save_pretrained` of a network, and of those within it, write the plan, too, until `undo` closes."""
    for _, model in models_within(network):
        if not isinstance(model, _Model) and "save_pretrained" not in vars(model):
            vars(model)["save_pretrained"] = partial(_save, model, model.save_pretrained)
            undo.callback(vars(model).pop, "save_pretrained")


def _save(
    model: Any, save: Any, save_directory: str | os.PathLike[str], is_main_process: bool = True,
    state_dict: Mapping[str, Tensor] | None = None, **options: Any,
) -> None:  # fmt: skip
    """As `save_pretrained` of transformers; with config.json it writes the mark and the plan."""
    groups_of, kind = _groups_of(model), type(model.config)
    tensors = _tensors(model, groups_of, state_dict or {})  # on all ranks, of which one writes

    class Settings(kind):  # type: ignore[misc, valid-type]
        def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> None:
            super().save_pretrained(folder, **options)
            _write(model, groups_of, tensors, Path(folder))

    _see_adapters(model)
    Settings.__name__ = kind.__name__
    with changed([(model.config, "__class__", Settings)]):
        save(save_directory, is_main_process=is_main_process, state_dict=state_dict, **options)


def _groups_of(model: Any) -> Groups:
    groups_of = {}
    for layer in layers_of(model):
        if (rule := standing_rule(layer.module, layer.heads)) is None:
            raise AbbeError(
                "this model has no plan: load it with from_pretrained, from a folder with a plan; after "
                f"set_attn_implementation('sdpa'), call set_attn_implementation({CARRIED_NAME!r}) before it is saved"
            )
        groups_of[layer] = rule
    return groups_of


def _tensors(model: nn.Module, groups_of: Groups, given: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The state of every normalizer, by id: from a state dict if it has it, else from the model, whole if sharded."""
    held = model._modules.get(SWAPPED)
    names = {} if held is None else {id(part): f"{SWAPPED}.{name}." for name, part in held.named_modules()}
    states = {
        id(one): {key: given.get(f"{names.get(id(one))}{key}", value) for key, value in one.state_dict().items()}
        for groups in groups_of.values()
        for group in groups
        if (one := group.normalizer) is not None
    }
    return {
        one: {key: getattr(value, "full_tensor", lambda value=value: value)() for key, value in state.items()}
        for one, state in states.items()
    }


def _write(model: Any, groups_of: Groups, tensors: dict[int, dict[str, Tensor]], folder: Path) -> None:
    """The plan, and its mark in the settings of the model and of an adapter, whichever are there."""
    write_groups(folder / CARRIED_FILE, groups_of, type(model).__name__.removeprefix("FSDP"), tensors)
    for name, marked in (("config.json", _marked), (ADAPTER, _marked_adapter)):
        if (path := folder / name).is_file():
            settings = json.loads(path.read_text("utf-8"))
            if _ENTRY not in settings:
                write_whole(path, (json.dumps(marked(settings), indent=2, sort_keys=True) + "\n").encode())


def _marked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model as config.json has them in a folder with a plan."""
    own = {"model_type": settings["model_type"], "architectures": list(settings.get("architectures") or ())}
    entry = {"format": _FORMAT} | own | {"plan": CARRIED_FILE}
    names = [_PREFIX + name for name in own["architectures"]]
    return settings | {_ENTRY: entry, "model_type": MODEL_TYPE, "architectures": names}


def _marked_adapter(settings: dict[str, Any]) -> dict[str, Any]:
    """PEFT warns that it does not know the entry, and so names abbe."""
    return settings | {_ENTRY: {"format": _FORMAT, "plan": CARRIED_FILE}}


# -- State and adapters: seen by hooks that any state_dict and load_state_dict call -----------------------------------


def _check_state(network: Any, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a state of another plan, before anything of it is loaded; warn of an adapter's, which lacks the values."""
    held: Normalizers = network._modules[SWAPPED]
    if (stored := state_dict.get(f"{prefix}{SWAPPED}._extra_state")) is not None:
        held.check(stored)
    elif hasattr(network, "peft_config") and next(held.parameters(), None) is not None:
        warnings.warn(
            "an adapter has no values of normalizers that learn, so those of this model stay; the values lie in the "
            f"adapter's folder: abbe.swap(model, 'file:FOLDER/{CARRIED_FILE}')",
            stacklevel=2,
        )


def _see_adapters(network: Any, *_: Any) -> None:
    """Let adapters of PEFT, which may have come at any time, be saved with the plan: their settings write it."""
    for config in _adapters(network):
        vars(config)["save_pretrained"] = partial(_save_adapter, network, config)


def _leave_adapters(network: Any) -> None:
    for config in _adapters(network):
        vars(config).pop("save_pretrained", None)


def _adapters(network: Any) -> list[Any]:
    return [config for config in getattr(network, "peft_config", {}).values() if hasattr(config, "peft_type")]


def _save_adapter(network: Any, config: Any, folder: str | os.PathLike[str], **options: Any) -> None:
    type(config).save_pretrained(config, folder, **options)
    if has_rule(network):  # not after set_attn_implementation('sdpa')
        groups_of = _groups_of(network)
        _write(network, groups_of, _tensors(network, groups_of, {}), Path(folder))


# -- Loaded again -----------------------------------------------------------------------------------------------------


def carried_config(settings: dict[str, Any], **options: Any) -> Any:
    """The result of AutoConfig for the model type "abbe", a folder with a plan: the settings of the model itself.

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


class _Model:
    """Mixed into a model class: it reads and writes its plan with its weights."""

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        result = super().from_pretrained(name, *args, **options)  # type: ignore[misc]
        network = result[0] if isinstance(result, tuple) else result
        _attach(network, Plan(network, f"file:{_plan_file(name, options)}").by_layer)
        return result

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **options: Any) -> None:
        _save(self, super().save_pretrained, save_directory, *args, **options)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For torch.save, pickle and deepcopy, which cannot find a class that is made on demand."""
        network: Any = self
        with changed([(network, "__class__", type(self).__mro__[2])]):
            memory = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
            plain = copy.deepcopy(network, memory)
        return reduced(network, plain)

    @classmethod
    def is_custom_code(cls) -> bool:
        """False, so that transformers renames weights as for its own class; those not found it would draw at random."""
        return False


def _attach(network: Any, groups_of: Groups) -> None:
    for layer, groups in groups_of.items():
        layer.module.__dict__[GROUPS] = groups
    hold(network, groups_of, ExitStack())


def _plan_file(name: str | os.PathLike[str], options: dict[str, Any]) -> str:
    """In the folder, or from the same place on the hub as the weights."""
    if Path(name).is_dir():
        return str(Path(name, options.get("subfolder") or "", CARRIED_FILE))
    from transformers.utils.hub import cached_file

    hub = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
    return str(cached_file(str(name), CARRIED_FILE, **{key: options[key] for key in hub if key in options}))


def _config_class(kind: str, architecture: str) -> Any:
    """The config class of a model type in the variant that carries a plan."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    base: Any = CONFIG_MAPPING[kind]
    network: Any = getattr(transformers, architecture, None)
    if network is None:
        raise AbbeError(f"this version of transformers has no {architecture}")
    return _carrying(base, network)[0]


@lru_cache(maxsize=64)
def _carrying(base: Any, network: Any) -> tuple[Any, Any]:
    """Classes of config and model in the variants that carry a plan, registered with the auto classes."""
    import transformers

    # Names as in transformers: losses, conversions and tokenizers are looked up by them.
    config: Any = type(base.__name__, (base,), {"__module__": __name__})
    ignored = {*(network._keys_to_ignore_on_load_unexpected or ()), rf"(^|\.){SWAPPED}\."}  # the plan has them
    own = {"__module__": __name__, "config_class": config, "_keys_to_ignore_on_load_unexpected": ignored}
    model: Any = type(network.__name__, (_Model, network), own)
    for name in (*(f"AutoModelFor{task}" for task in _AUTO), "AutoModel"):
        auto = getattr(transformers, name)
        known = auto._model_mapping.get(base, ())
        if network in (known if isinstance(known, (tuple, list)) else (known,)):
            auto.register(config, model, exist_ok=True)
    return config, model


# -- Pickled ----------------------------------------------------------------------------------------------------------


def reduced(model: nn.Module, plain: Any) -> Any:
    """What pickle writes of a model with a plan, given a copy of it that shares its tensors: the plain model and it."""
    rules = {layer.path: groups for layer, groups in _groups_of(model).items()}
    if isinstance(plain, _Model):
        plain.__class__ = type(plain).__mro__[2]
    if type(plain.config).__module__ == __name__:
        plain.config.__class__ = type(plain.config).__mro__[1]
    plain._modules.pop(SWAPPED, None)
    for module in plain.modules():
        module.__dict__.pop(GROUPS, None)
    for hooks, own in ((plain._load_state_dict_pre_hooks, _check_state), (plain._state_dict_pre_hooks, _see_adapters)):
        for number in [number for number, hook in hooks.items() if own in (hook, getattr(hook, "hook", None))]:
            del hooks[number]
    return _again, (plain, rules)


def _again(plain: Any, rules: Mapping[str, Rule]) -> Any:
    """The model of `reduced`, as it would be loaded from its folder."""
    kinds: Any = type(plain.config), type(plain)
    plain.config.__class__, plain.__class__ = _carrying(*kinds)
    for one in configs_within(plain):
        one._attn_implementation = CARRIED_NAME
    _attach(plain, {layer: rules[layer.path] for layer in layers_of(plain)})
    return plain
