"""Models and text: load a transformer, pull one into the cache, cut text into windows, tap the attention."""

from ._head import logits_in_pieces
from ._load.load import LoadedModel, load
from ._load.wrap import wrap
from ._pull.cache import facts as pulled_facts
from ._pull.pull import pull
from ._session.call import AttentionCall
from ._session.selfcheck_output import checked_logits
from ._swap.patterns import FILE_PREFIX, rules_in
from ._swap.plan import HeadGroup
from ._swap.swap import Swap, swap
from ._tap import Tap, tap
from ._text import Text, read_text
from ._unwrap import evaluating, unwrapped
from ._windows import Window, Windows, windows

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
