"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from ._cache import PULLABLE, cache_folder, is_pulled, pulled_facts, pulled_folder
from ._export.carried import carried_config
from ._export.export import Export, export, gguf_error, read_export
from ._head import logits_in_pieces
from ._listening import Consumer, HeardCall, Listener
from ._load.device import DeviceLike, DeviceMap, DtypeLike, as_device, as_dtype, input_device
from ._load.load import LoadedModel, load, wrap
from ._load.room import free_memory, megabytes
from ._load.sources import EMBEDDED_FILES, embedded_about, embedded_folder
from ._pull import pull
from ._session.call import AttentionCall
from ._session.selfcheck import checked_logits, self_check_tolerance
from ._shape import Shape, built, configuration, llama_configuration, shape_of
from ._swap.attention import HeadGroup, attention_names, register_attention_names
from ._swap.layers import FILE_PREFIX, rules_in
from ._swap.plan import Plan, plan
from ._swap.swap import Swap, swap
from ._tap import Tap, tap
from ._text import Text, Window, Windows, read_text, special_tokens, windows
from ._unwrap import evaluating, is_compiled, unwrapped

__all__ = [
    "EMBEDDED_FILES",
    "FILE_PREFIX",
    "PULLABLE",
    "AttentionCall",
    "Consumer",
    "DeviceLike",
    "DeviceMap",
    "DtypeLike",
    "Export",
    "HeadGroup",
    "HeardCall",
    "Listener",
    "LoadedModel",
    "Plan",
    "Shape",
    "Swap",
    "Tap",
    "Text",
    "Window",
    "Windows",
    "as_device",
    "as_dtype",
    "attention_names",
    "built",
    "cache_folder",
    "carried_config",
    "checked_logits",
    "configuration",
    "embedded_about",
    "embedded_folder",
    "evaluating",
    "export",
    "free_memory",
    "gguf_error",
    "input_device",
    "is_compiled",
    "is_pulled",
    "llama_configuration",
    "load",
    "logits_in_pieces",
    "megabytes",
    "plan",
    "pull",
    "pulled_facts",
    "pulled_folder",
    "read_export",
    "read_text",
    "register_attention_names",
    "rules_in",
    "self_check_tolerance",
    "shape_of",
    "special_tokens",
    "swap",
    "tap",
    "unwrapped",
    "windows",
    "wrap",
]
