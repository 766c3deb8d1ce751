"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from ._attention_call import AttentionCall
from ._head import logits_in_pieces
from ._load import LoadedModel, load
from ._pull import pull
from ._pull_cache import facts as pulled_facts
from ._selfcheck_output import checked_logits
from ._swap import Swap, swap
from ._swap_patterns import FILE_PREFIX, rules_in
from ._swap_plan import HeadGroup
from ._tap import Tap, tap
from ._text import Text, read_text
from ._unwrap import evaluating, unwrapped
from ._windows import Window, Windows, windows
from ._wrap import wrap

__all__ = [
    "FILE_PREFIX",
    "AttentionCall",
    "HeadGroup",
    "LoadedModel",
    "Swap",
    "Tap",
    "Text",
    "Window",
    "Windows",
    "checked_logits",
    "evaluating",
    "load",
    "logits_in_pieces",
    "pull",
    "pulled_facts",
    "read_text",
    "rules_in",
    "swap",
    "tap",
    "unwrapped",
    "windows",
    "wrap",
]
