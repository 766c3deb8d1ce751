"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from ._export import Export, export, gguf_error, read_export
from ._export.carried import carried_config
from ._listening import Consumer, HeardCall, Listener
from ._load import LoadedModel, configuration, load, wrap
from ._load.device import DeviceLike, DeviceMap, DtypeLike, as_device, as_dtype, free_memory, megabytes
from ._load.sources import (
    EMBEDDED_FILES,
    PULLABLE,
    cache_folder,
    embedded_about,
    embedded_folder,
    is_pulled,
    pulled_facts,
    pulled_folder,
)
from ._network import evaluating, input_device, logits_in_pieces, unwrapped
from ._plan import FILE_PREFIX, HeadGroup, Plan, plan, rules_in
from ._pull import pull
from ._session.call import AttentionCall
from ._session.selfcheck import checked_logits, self_check_tolerance
from ._shape import Shape, built, llama_configuration, shape_of
from ._swap import Swap, attention_names, register_attention_names, swap
from ._tap import Tap, tap
from ._text import Text, Window, Windows, read_text, special_tokens, windows

# Load a model and its text.
__all__ = ["LoadedModel", "Text", "Window", "Windows", "load", "read_text", "special_tokens", "windows", "wrap"]
__all__ += ["DeviceLike", "DeviceMap", "DtypeLike", "as_device", "as_dtype", "free_memory", "input_device", "megabytes"]
__all__ += ["EMBEDDED_FILES", "PULLABLE", "cache_folder", "embedded_about", "embedded_folder"]
__all__ += ["is_pulled", "pull", "pulled_facts", "pulled_folder"]
# What a network is, with or without weights.
__all__ += ["Shape", "built", "configuration", "llama_configuration", "shape_of"]
__all__ += ["evaluating", "logits_in_pieces", "unwrapped"]
# See its attention, and change it.
__all__ += ["AttentionCall", "Consumer", "HeardCall", "Listener", "Tap", "tap"]
__all__ += ["checked_logits", "self_check_tolerance"]
__all__ += ["FILE_PREFIX", "HeadGroup", "Plan", "Swap", "attention_names", "plan", "register_attention_names"]
__all__ += ["Export", "carried_config", "export", "gguf_error", "read_export", "rules_in", "swap"]
