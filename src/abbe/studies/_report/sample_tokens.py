"""The tokens of a window as readable text: the characters that each one stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._errors import AbbeError
from ...models import Text, Window

CONTINUED = "·"  # a token that is only a later part of a character, which was shown with its first part
LONGEST = 64  # characters of one token that are shown
_LONGEST_GAP = 16  # characters between two tokens, which some tokenizers drop
_MARGIN = 2000  # characters on either side, so that the cut does not change how the window's text is tokenised

Span = tuple[int, int]


def token_texts(tokenizer: Any, text: Text, window: Window) -> tuple[str, ...]:
    """One string per token; joined without marks and special tokens they are the window's text.

    Whitespace that a tokenizer drops goes with the token after it. A special token, or one that stands for no
    character, is shown by its name. A later part of a character is shown as "·", a long token is cut.
    """
    ids = window.tokens.tolist()
    before, after = _special_counts(tokenizer)
    stop = len(ids) - after
    spans = _spans(tokenizer, text, window, ids[before:stop])
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(ids)]
    return (*names[:before], *_texts(text.content, spans, names[before:stop]), *names[stop:])


def _special_counts(tokenizer: Any) -> tuple[int, int]:
    """How many special tokens the tokenizer adds before and after a text."""
    special = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False)["special_tokens_mask"]
    return special.index(0), special[::-1].index(0)


def _spans(tokenizer: Any, text: Text, window: Window, ids: Sequence[int]) -> list[Span]:
    """The characters of every token, by tokenising the window's surroundings again: a whole text may take long."""
    margin = _MARGIN
    while True:
        start, end = max(0, window.start - margin), min(len(text.content), window.end + margin)
        encoded = tokenizer(
            text.content[start:end], add_special_tokens=False, return_offsets_mapping=True, truncation=False,
            padding=False, verbose=False,
        )  # fmt: skip
        spans = [(first + start, last + start) for first, last in encoded["offset_mapping"]]
        place = _place(encoded["input_ids"], spans, ids, window)
        if place is not None:
            return spans[place : place + len(ids)]
        if (start, end) == (0, len(text.content)):
            raise AbbeError(f"{text.name} has no window {window.index} of {window.length} tokens: another text?")
        margin *= 16


def _place(encoded: Sequence[int], spans: Sequence[Span], ids: Sequence[int], window: Window) -> int | None:
    """Where the window's tokens start among the encoded ones, with the span of the window."""
    for place in (place for place, span in enumerate(spans) if span[0] == window.start):
        last = place + len(ids) - 1
        if last < len(spans) and spans[last][1] == window.end and list(encoded[place : last + 1]) == list(ids):
            return place
    return None


def _texts(content: str, spans: Sequence[Span], names: Sequence[str]) -> list[str]:
    texts: list[str] = []
    done = spans[0][0]  # all characters before this one have been shown
    for (start, end), name in zip(spans, names, strict=True):
        if start == end:
            texts.append(name)
            continue
        gap, part = content[max(done, start - _LONGEST_GAP) : start], content[max(done, start) : end]
        if len(part) > LONGEST:
            part = part[: LONGEST - 1] + "…"
        texts.append(gap + part if part else CONTINUED)
        done = max(done, end)
    return texts
