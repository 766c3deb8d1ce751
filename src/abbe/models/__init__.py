"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from ._export.carried import carried_config
from ._export.export import Export, export
from ._export.gguf import gguf_error, read_export
from ._head import logits_in_pieces
from ._heard import HeardCall
from ._listening import Consumer, Listener
from ._load.device import DeviceLike, DeviceMap, DtypeLike, as_device, as_dtype
from ._load.embedded import EMBEDDED_FILES, embedded_about, embedded_folder
from ._load.load import LoadedModel, load
from ._load.places import input_device
from ._load.room import free_memory, megabytes
from ._load.wrap import wrap
from ._pull.cache import PULLABLE, cache_folder, is_pulled, pulled_facts, pulled_folder
from ._pull.pull import pull
from ._session.call import AttentionCall
from ._session.selfcheck import checked_logits, self_check_tolerance
from ._shape import Shape, built, configuration, llama_configuration, shape_of
from ._swap.groups import HeadGroup
from ._swap.layers import FILE_PREFIX, rules_in
from ._swap.named import attention_names, register_attention_names
from ._swap.plan import Plan, plan
from ._swap.swap import Swap, swap
from ._tap import Tap, tap
from ._text import Text, read_text
from ._unwrap import evaluating, is_compiled, unwrapped
from ._windows import Window, Windows, special_tokens, windows

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
