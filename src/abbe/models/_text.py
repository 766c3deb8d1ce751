"""Text and its windows: read from files, cut into equal stretches of tokens."""

from __future__ import annotations

import hashlib
import os
import random
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .._arguments import is_whole, shown, whole, window_lengths
from .._errors import AbbeError
from .._tensors import stored_bytes

PathLike = str | os.PathLike[str]

_LONGEST = 200  # characters of a path that a message repeats
_CONTINUED = "·"  # a token that is only a later part of a character, which was shown with its first part
_LONGEST_TOKEN = 64  # characters of one token that are shown
_LONGEST_GAP = 16  # characters between two tokens, which some tokenizers drop
_MARGIN = 2000  # characters on either side, so that the cut does not change how the window's text is tokenised
_AS_TEXT = "a string with a space or a line break, or abbe.Text(name, content), is taken as the text itself"

# One line that begins like a path or ends in a suffix such as .txt names a file, even if there is none.
_FILE_NAME = re.compile(r"(~|\.{0,2})/.*|.*\.[A-Za-z]\w{0,4}")


@dataclass(frozen=True)
class Text:
    """A text with a name: what `read_text` returns, or any text of yours.

    Every function that takes a text also takes this. The name appears in tables and manifests; only the content affects
    the measurements.

    Attributes:
        name: shown in tables and manifests.
        content: the text.

    Examples:
        >>> text = abbe.Text("my corpus", " ".join(["It was a dark and stormy night."] * 100))
        >>> text.name, text.fingerprint[:8]
        ('my corpus', '2c85d9f5')
    """

    name: str
    content: str = field(repr=False)

    def __post_init__(self) -> None:
        for what in ("name", "content"):
            if not isinstance(value := getattr(self, what), str):
                raise AbbeError(f"the {what} of a Text is {shown(value)}, but must be a string")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the content in UTF-8."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()

    def facts(self) -> dict[str, Any]:
        """For a manifest: name, size and fingerprint."""
        return {"name": self.name, "characters": len(self.content), "fingerprint": self.fingerprint}


@dataclass(frozen=True, eq=False)
class Tokens(Text):
    """Token ids in place of a text, for a model without a tokenizer.

    Attributes:
        name: shown in tables and manifests.
        content: empty.
        ids: (tokens,), int64.

    Examples:
        >>> len(abbe.models.read_tokens([3, 1, 4, 1, 5]).ids)
        5
    """

    ids: Tensor = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the ids."""
        return hashlib.sha256(stored_bytes(self.ids)).hexdigest()

    def facts(self) -> dict[str, Any]:
        """For a manifest: name, size and fingerprint."""
        return {"name": self.name, "tokens": len(self.ids), "fingerprint": self.fingerprint}


def read_tokens(source: object) -> Tokens:
    """Token ids to measure on: a tensor, array or list, several of them, or a file.

    Args:
        source: whole numbers >= 0 of any shape, read row by row; a list of such tensors; or the path of a .npy or
            .safetensors file that holds one.

    Returns:
        The ids in one row.

    Raises:
        AbbeError: there is no such file, or it holds no ids.

    Examples:
        >>> abbe.models.read_tokens([torch.arange(3), torch.arange(2)]).ids
        tensor([0, 1, 2, 0, 1])
    """
    if isinstance(source, Tokens):
        return source
    name, held = "token ids", source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        name, held = path.name, _held_ids(path)
    try:
        several = isinstance(held, (list, tuple)) and held and not is_whole(held[0])
        parts = [torch.as_tensor(part) for part in (cast(list[Any], held) if several else [held])]
    except (TypeError, ValueError, RuntimeError):
        parts = []
    whole_numbers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32)
    if not parts or any(part.dtype not in whole_numbers for part in parts):
        raise AbbeError(f"{name}: tokens must be whole numbers, as a tensor, an array or a list; got {shown(source)}")
    ids = torch.cat([part.detach().cpu().reshape(-1).long() for part in parts])
    if not len(ids) or int(ids.min()) < 0:
        raise AbbeError(f"{name}: {'there are no tokens' if not len(ids) else 'a token id is negative'}")
    return Tokens(name, "", ids)


def _held_ids(path: Path) -> object:
    """What a file of ids holds."""
    if not path.is_file():
        raise AbbeError(f"there is no file {path}: tokens are ids in a .npy or .safetensors file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            (ids,) = load_file(path).values()
            return ids
        import numpy

        return numpy.load(path, allow_pickle=False)
    except Exception as error:  # of either library
        raise AbbeError(f"{path} is not a .npy or .safetensors file with one array: {error}") from None


def read_text(source: PathLike | Sequence[PathLike] | None = None) -> Text:
    """Read the text to measure on: files, standard input, the text itself, or the sample that comes with abbe.

    A string that is not the path of a file is the text itself if it has a space or a line break, unless it is one line
    that looks like a path: it begins with /, ./, ../ or ~/, or ends in a suffix such as .txt. `Text(name, content)`
    takes any string. Files are UTF-8; a byte order mark is dropped, all else is kept, so that character spans fit the
    file.

    Args:
        source: one file or several (joined by a newline), "-" for standard input, None for the embedded sample.

    Returns:
        The text with its name.

    Raises:
        AbbeError: there is no such file, it is not UTF-8, or it is empty.

    Examples:
        >>> abbe.read_text().name
        'embedded sample'
        >>> abbe.read_text("It was a dark and stormy night.").content
        'It was a dark and stormy night.'
    """
    if source is None:
        try:
            content = resources.files("abbe").joinpath("embedded", "sample.txt").read_bytes()
        except OSError as error:
            raise AbbeError("the embedded sample is missing from this installation: name a text file") from error
        return Text("embedded sample", _decode(content, "the embedded sample"))
    parts = [_read(one) for one in _sources(source)]
    return Text(" + ".join(part.name for part in parts), "\n".join(part.content for part in parts))


def _sources(source: object) -> list[PathLike]:
    sources: list[Any] = [source]
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, os.PathLike, Mapping)):
        sources = list(source)
    if not sources:
        raise AbbeError("no text was named: give a file, '-' for standard input, or nothing for the embedded sample")
    for one in sources:
        if not isinstance(one, str | os.PathLike) or not isinstance(os.fspath(one), str):
            raise AbbeError(
                f"text is {shown(one)}, but must be a file, the text itself (a string with a space or a line break), "
                "an abbe.Text, or None for the embedded sample"
            )
    return sources


def _read(source: PathLike) -> Text:
    if source == "-":
        return Text("standard input", _decode(sys.stdin.buffer.read(), "standard input"))
    if isinstance(source, str) and _is_text_itself(source):
        return Text("text", _not_empty(source, "text"))
    name = os.fspath(source)
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    try:
        path = Path(source).expanduser()
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise AbbeError(f"there is no text file {name}; {_AS_TEXT}") from error
    except IsADirectoryError as error:
        raise AbbeError(f"{name} is a folder: name the text files in it") from error
    except OSError as error:
        raise AbbeError(f"cannot read {name}: {error.strerror}; {_AS_TEXT}") from error
    except (ValueError, RuntimeError) as error:  # a zero byte; the home of an unknown user
        raise AbbeError(f"{shown(name)} is not a path: {error}; {_AS_TEXT}") from error
    return Text(path.name, _decode(content, name))


def _is_text_itself(source: str) -> bool:
    if not source.strip():
        return True
    with suppress(OSError, ValueError, RuntimeError):  # too long for a path, a zero byte, an unknown user's home
        if Path(source).expanduser().exists():
            return False
    line = source.strip()
    return "\n" in source or "\r" in source or (" " in line and not _FILE_NAME.fullmatch(line))


def _decode(content: bytes, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{content[error.start]:02x} at position {error.start}, line {line}"
        raise AbbeError(f"{where} is not UTF-8 ({wrong}): convert it, for example with iconv") from error
    return _not_empty(text, where)


def _not_empty(text: str, where: str) -> str:
    if not text.strip():
        raise AbbeError(f"{where} is empty: there is no text to measure on")
    return text


@dataclass(frozen=True, eq=False)
class Window:
    """A window of tokens, special tokens included, and the span of characters that they come from.

    Attributes:
        length: in tokens.
        index: its number among the windows of its length, from 0.
        tokens: ids, (length,).
        start: of its span, in characters of the text.
        end: of its span, in characters of the text.
    """

    length: int
    index: int
    tokens: Tensor
    start: int
    end: int


class Windows(list[Window]):
    """A list of windows that knows which lengths the text was too short for.

    Args:
        windows: the items of the list.
        too_short: one line per length that has fewer windows than wanted.

    Examples:
        >>> model = abbe.load("embedded")
        >>> drawn = abbe.windows("It was a dark and stormy night. " * 30, [16, 128], 4, 0, tokenizer=model.tokenizer)
        >>> len(drawn.of_lengths([16])), len(drawn.skipped)
        (4, 1)
    """

    def __init__(self, windows: Iterable[Window], too_short: Mapping[int, str]) -> None:
        super().__init__(windows)
        self._too_short = dict(too_short)

    @property
    def skipped(self) -> tuple[str, ...]:
        """One line per length that the text was too short for."""
        return tuple(self._too_short.values())

    def of_lengths(self, lengths: Collection[int]) -> Windows:
        """The windows of some lengths only.

        Args:
            lengths: in tokens.
        """
        too_short = {length: line for length, line in self._too_short.items() if length in lengths}
        return Windows((window for window in self if window.length in lengths), too_short)


def windows(
    text: Text | str, lengths: int | Sequence[int], count: int, seed: int, *, tokenizer: Any, context: int | None = None
) -> Windows:
    """Cut a text into windows of tokens that do not overlap, drawn by a seed from all over the text.

    The text is tokenised once. Windows of one length share no token; where they lie depends on the seed, the length,
    the count and the text only, so adding a length changes nothing. Special tokens that the tokenizer adds (a begin
    token, [CLS] and [SEP]) are in every window and count in its length. A text with room for fewer windows gives fewer,
    and `skipped` of the result says so. If a token is only part of a character, its span is the whole character.

    Args:
        text: a `Text` or `Tokens`, or the text itself.
        lengths: in tokens, one or several, each >= 2.
        count: windows of every length, >= 1.
        seed: of where they lie, >= 0.
        tokenizer: a fast one of transformers; of no use with `Tokens`.
        context: the longest input of the model, in tokens; longer windows are an error.

    Returns:
        Windows, ordered by length as given, then by place.

    Examples:
        >>> model = abbe.load("embedded")
        >>> drawn = abbe.windows(abbe.read_text(), [64, 128], 3, seed=0, tokenizer=model.tokenizer)
        >>> [(window.length, len(window.tokens)) for window in drawn]
        [(64, 64), (64, 64), (64, 64), (128, 128), (128, 128), (128, 128)]
    """
    if isinstance(text, str):
        text = Text("text", text)
    if not isinstance(text, Text):
        raise AbbeError(f"text is {shown(text)}, but must be an abbe.Text or a string: `abbe.read_text` reads files")
    count, seed = whole("the number of windows", count), whole("seed", seed)
    lengths = _checked_lengths(lengths, context)
    if count < 1:
        raise AbbeError(f"the number of windows is {count}, but at least 1 of each length is needed")
    ids, spans = _tokenise(text, tokenizer)
    before, after = ([], []) if isinstance(text, Tokens) else special_tokens(tokenizer)
    shortest, special = min(lengths), len(before) + len(after)
    if shortest <= special:
        raise AbbeError(f"window length {shortest} has no room for text next to {special} special tokens")
    if len(ids) < shortest - special:
        extra = f" besides {special} special ones" if special else ""
        raise AbbeError(
            f"{text.name} has {len(ids)} tokens, too few for the shortest window: "
            f"length {shortest} needs {shortest - special}{extra}"
        )
    drawn: list[Window] = []
    too_short: dict[int, str] = {}
    for length in lengths:
        body = length - special
        possible = min(count, len(ids) // body)
        if possible < count:
            fit = f"only {possible} of {count}" if possible else f"none of {count}"
            too_short[length] = f"length {length}: {fit} windows, because {text.name} has only {len(ids)} tokens"
        for index, start in enumerate(_draw(len(ids), body, possible, seed, length)):
            stop = start + body
            tokens = torch.tensor([*before, *ids[start:stop], *after])
            drawn.append(Window(length, index, tokens, spans[start][0], spans[stop - 1][1]))
    return Windows(drawn, too_short)


def _checked_lengths(given: int | Sequence[int], context: int | None) -> tuple[int, ...]:
    lengths = window_lengths(given)
    if not lengths:
        raise AbbeError(f"lengths is {shown(given)}, but must be a list of window lengths, such as [256, 1024]")
    if min(lengths) < 2:
        raise AbbeError(f"window length {min(lengths)} is too short: attention needs at least 2 tokens")
    if len(set(lengths)) < len(lengths):
        raise AbbeError(f"lengths has duplicates: {list(lengths)}")
    if context is not None and max(lengths) > context:
        raise AbbeError(f"window length {max(lengths)} is above the model's context of {context} tokens")
    return lengths


def _tokenise(text: Text, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of the whole text, and the span of characters of each; of ids their places."""
    if isinstance(text, Tokens):
        return text.ids.tolist(), [(place, place + 1) for place in range(len(text.ids))]
    try:
        _not_empty(text.content, text.name).encode()
    except UnicodeEncodeError as error:
        raise AbbeError(f"{text.name} is not valid Unicode: half a character at position {error.start:,}") from None
    if tokenizer is None:
        raise AbbeError("there is no tokenizer for a text: give token ids, tokens=..., or tokenizer=...")
    if not getattr(tokenizer, "is_fast", False):
        raise AbbeError(f"tokenizer {type(tokenizer).__name__} cannot give character spans: a fast one is needed")
    encoded = tokenizer(
        text.content, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False,
        return_token_type_ids=False, truncation=False, padding=False, verbose=False,
    )  # fmt: skip
    return encoded["input_ids"], encoded["offset_mapping"]


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer adds before and after a text.

    Args:
        tokenizer: of transformers.

    Returns:
        Token ids before and after.

    Examples:
        >>> abbe.models.special_tokens(abbe.load("embedded").tokenizer)
        ([], [])
    """
    encoded = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    first = special.index(0)
    last = len(special) - special[::-1].index(0)
    return ids[:first], ids[last:]


def token_texts(tokenizer: Any, text: Text, window: Window) -> tuple[str, ...]:
    """Tokens as a person reads them; joined without marks and special tokens they are the window's text.

    Whitespace that a tokenizer drops goes with the token after it. A special token, or one that stands for no
    character, is shown by its name. A later part of a character is shown as "·", a long token is cut.

    Args:
        tokenizer: that cut the window.
        text: that the window is from.
        window: from `windows`.

    Returns:
        One string per token.

    Raises:
        AbbeError: the window is not from this text.

    Examples:
        >>> model, text = abbe.load("embedded"), abbe.Text("night", "It was a dark and stormy night. " * 3)
        >>> (window,) = abbe.windows(text, 4, 1, seed=0, tokenizer=model.tokenizer)
        >>> "".join(abbe.models.token_texts(model.tokenizer, text, window)) in text.content
        True
    """
    ids = window.tokens.tolist()
    if isinstance(text, Tokens):
        return tuple(map(str, ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids)))
    before, after = special_tokens(tokenizer)
    texts = [str(name) for name in tokenizer.convert_ids_to_tokens(ids)]
    spans = _spans(tokenizer, text, window, ids[len(before) : len(ids) - len(after)])
    done = spans[0][0]  # all characters before this one have been shown
    for place, (start, end) in enumerate(spans, len(before)):
        if start == end:
            continue
        gap, part = text.content[max(done, start - _LONGEST_GAP) : start], text.content[max(done, start) : end]
        if len(part) > _LONGEST_TOKEN:
            part = part[: _LONGEST_TOKEN - 1] + "…"
        texts[place] = gap + part if part else _CONTINUED
        done = max(done, end)
    return tuple(texts)


def _spans(tokenizer: Any, text: Text, window: Window, ids: list[int]) -> list[tuple[int, int]]:
    """The characters of every token, by tokenising the window's surroundings again: a whole text may take long."""
    margin, last = _MARGIN, len(ids) - 1
    while True:
        start, end = max(0, window.start - margin), min(len(text.content), window.end + margin)
        encoded = tokenizer(
            text.content[start:end], add_special_tokens=False, return_offsets_mapping=True, truncation=False,
            padding=False, verbose=False,
        )  # fmt: skip
        spans = [(first + start, after + start) for first, after in encoded["offset_mapping"]]
        for place in range(len(spans) - last):
            ends = spans[place][0], spans[place + last][1]
            if ends == (window.start, window.end) and list(encoded["input_ids"][place : place + last + 1]) == ids:
                return spans[place : place + last + 1]
        if (start, end) == (0, len(text.content)):
            raise AbbeError(f"{text.name} has no window {window.index} of {window.length} tokens: another text?")
        margin *= 16


def _draw(total: int, body: int, count: int, seed: int, length: int) -> list[int]:
    """Starts in rising order: the gaps between the windows are drawn, so no two windows can overlap."""
    # Only seeding and random() are guaranteed to be the same in all versions of Python.
    generator = random.Random(f"abbe windows, seed {seed}, length {length}")
    free = total - count * body
    gaps = sorted(int(generator.random() * (free + 1)) for _ in range(count))
    return [gap + place * body for place, gap in enumerate(gaps)]
