"""Windows: length, place, span, reproducibility, special tokens, and mistakes told in one line."""

from __future__ import annotations

import hashlib
import io
import logging
import random
import string
import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import begin_tokenizer, encoder_tokenizer
from tiers import examples
from tiny_models import byte_tokenizer
from transformers.utils.logging import add_handler, remove_handler

from abbe import AbbeError
from abbe.models import Text, Windows, read_text, windows

BYTE = byte_tokenizer()
ENCODER = encoder_tokenizer()
BEGIN = begin_tokenizer()
PROSE = "".join(random.Random(5).choices(string.ascii_lowercase + "  \n", k=5000))


def cut(text: str = PROSE, lengths: list[int] | None = None, count: int = 4, seed: int = 0, **more: Any) -> Windows:
    return windows(text, lengths or [64], count, seed, **({"tokenizer": BYTE} | more))


def bytes_of(pieces: Windows) -> list[bytes]:
    return [bytes(window.tokens.tolist()) for window in pieces]


@settings(max_examples=examples(60))
@given(
    text=st.text(min_size=3, max_size=300).filter(lambda text: text.strip() and len(text.encode()) >= 7),
    lengths=st.lists(st.integers(2, 7), min_size=1, max_size=3, unique=True),
    count=st.integers(1, 20),
    seed=st.integers(0, 2**40),
)
def test_windows_of_any_text(text: str, lengths: list[int], count: int, seed: int) -> None:
    pieces = windows(text, lengths, count, seed, tokenizer=BYTE)
    whole = text.encode()
    for length in lengths:
        same = [window for window in pieces if window.length == length]
        assert len(same) == min(count, len(whole) // length)
        assert [window.index for window in same] == list(range(len(same)))
        behind = 0
        for window in same:
            assert (window.tokens.shape, window.tokens.dtype) == ((length,), torch.int64)
            content = bytes(window.tokens.tolist())
            spanned = text[window.start : window.end].encode()
            # Whole characters around the window's bytes: at most three more bytes on either side.
            assert content in spanned
            assert len(spanned) - length <= 6
            # Rising places in the text, each beginning where the one before has ended or later.
            behind = whole.index(content, behind) + length
    assert len(pieces.skipped) == sum(count > len(whole) // length for length in lengths)


def test_ascii_windows_tile_without_overlap() -> None:
    """With one byte a character, spans are places: the whole text must be coverable exactly."""
    pieces = cut(PROSE[:640], [64], 10)
    assert [(window.start, window.end) for window in pieces] == [(64 * place, 64 * place + 64) for place in range(10)]
    for seed in range(50):
        spans = [(window.start, window.end) for window in cut(PROSE[:1000], [37], 20, seed)]
        assert all(end - start == 37 for start, end in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_the_seed_decides_and_another_length_changes_nothing() -> None:
    assert [window.start for window in cut(count=3, seed=11)] == [2241, 2371, 4358]  # in every release
    alone = cut(lengths=[64], seed=3)
    assert bytes_of(alone) == bytes_of(cut(lengths=[64], seed=3))
    assert bytes_of(alone) != bytes_of(cut(lengths=[64], seed=4))
    among = cut(lengths=[100, 64, 7], seed=3)
    assert [window.length for window in among] == [100] * 4 + [64] * 4 + [7] * 4
    assert bytes_of(alone) == [bytes(window.tokens.tolist()) for window in among if window.length == 64]
    # The places of two lengths are drawn apart.
    assert alone[0].start != next(window.start for window in among if window.length == 100)


def test_windows_come_from_all_over_the_text() -> None:
    """Many single windows: their places are uniform (chi-square over ten stretches, 99.9 % point of 9 degrees)."""
    expected = 5 * examples(10)  # per stretch
    places = [cut(count=1, seed=seed)[0].start for seed in range(10 * expected)]
    assert min(places) >= 0
    assert max(places) <= len(PROSE) - 64
    stretch = (len(PROSE) - 63) / 10
    counts = [sum(int(place / stretch) == bin for place in places) for bin in range(10)]
    assert sum((count - expected) ** 2 / expected for count in counts) < 27.9


def test_a_begin_token_stands_in_every_window() -> None:
    pieces = cut(lengths=[16], tokenizer=BEGIN)
    for window in pieces:
        assert window.tokens[0] == 1
        assert 1 not in window.tokens[1:]
        assert window.tokens.shape == (16,)
        spanned = PROSE[window.start : window.end]
        assert len(spanned) == 15
        assert BEGIN(spanned, add_special_tokens=False).input_ids[-14:] == window.tokens[-14:].tolist()


def test_encoder_windows_have_cls_and_sep_and_no_padding() -> None:
    pieces = cut(lengths=[64, 10], tokenizer=ENCODER)
    assert len(pieces) == 8
    for window in pieces:
        assert (window.tokens[0], window.tokens[-1]) == (2, 3)
        assert not set(window.tokens[1:-1].tolist()) & {0, 1, 2, 3}
        letters = PROSE[window.start : window.end].split()
        assert len("".join(letters)) == window.length - 2


def test_special_tokens_take_no_room_in_the_text() -> None:
    """40 letters are exactly five windows of eight letters beside [CLS] and [SEP]."""
    pieces = cut("abcd " * 10, [10], 5, tokenizer=ENCODER)
    assert pieces.skipped == ()
    assert [window.start for window in pieces] == [0, 10, 20, 30, 40]


def test_fewer_windows_with_the_reason() -> None:
    pieces = cut(PROSE[:200], [64, 150, 1000], 3)
    assert [window.length for window in pieces] == [64] * 3 + [150]
    assert pieces.skipped == (
        "length 150: only 1 of 3 windows, because text has only 200 tokens",
        "length 1000: none of 3 windows, because text has only 200 tokens",
    )
    assert cut().skipped == ()
    pieces = windows(Text("book.txt", PROSE[:70]), [64], 2, 0, tokenizer=BYTE)
    assert pieces.skipped == ("length 64: only 1 of 2 windows, because book.txt has only 70 tokens",)


def test_the_text_is_tokenised_once_and_silently() -> None:
    seen: list[str] = []

    class Spy(type(BEGIN)):  # type: ignore[misc]
        def __call__(self, text: str, **more: Any) -> Any:
            seen.append(text)
            return super().__call__(text, **more)

    advice: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = advice.append  # type: ignore[method-assign]
    add_handler(listener)
    try:
        spy = Spy(tokenizer_object=BEGIN.backend_tokenizer, bos_token="<s>", model_max_length=64)
        assert len(cut(lengths=[16, 32, 48], tokenizer=spy)) == 12
    finally:
        remove_handler(listener)
    assert seen.count(PROSE) == 1
    assert sum(len(text) for text in seen) < len(PROSE) + 10
    assert advice == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": PROSE + "\ud83d" + PROSE}, "text is not valid Unicode: half a character at position 5,000"),
        ({"text": PROSE[:63]}, "text has 63 tokens, too few for the shortest window: length 64 needs 64"),
        ({"text": "abc", "tokenizer": ENCODER}, "has 3 tokens, .* length 64 needs 62 besides 2 special ones"),
        ({"lengths": [64, 2048], "context": 1024}, "window length 2048 is above the model's context of 1024 tokens"),
        ({"lengths": [1, 64]}, "window length 1 is too short"),
        ({"lengths": [2], "tokenizer": ENCODER}, "window length 2 has no room for text next to 2 special tokens"),
        ({"lengths": [64, 32, 64]}, r"duplicates: \[64, 32, 64\]"),
        ({"lengths": [64.0]}, "window length is 64.0, but must be a whole number"),
        ({"lengths": "64"}, "lengths is '64', but must be a number or a list of numbers"),
        ({"count": 0}, "the number of windows is 0"),
        ({"count": True}, "the number of windows is True, but must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5, but must be a whole number"),
        ({"tokenizer": object()}, "tokenizer object cannot give character spans"),
    ],
)
def test_mistakes_are_reported_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AbbeError, match=message) as error:
        cut(**changes)
    assert "\n" not in str(error.value)


def test_lengths_that_are_allowed_and_none() -> None:
    assert bytes_of(cut(lengths=64)) == bytes_of(cut(lengths=[64], context=64))
    with pytest.raises(AbbeError, match="must be a list"):
        windows(PROSE, [], 1, 0, tokenizer=BYTE)


# -- Texts ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    content = "Grüße,\r\nЖизнь 日本\n\ttab"
    path = tmp_path / "letter.txt"
    path.write_bytes(content.encode())
    text = read_text(path)
    assert (text.name, text.content) == ("letter.txt", content)
    assert text.fingerprint == hashlib.sha256(content.encode()).hexdigest()
    assert read_text(str(path)) == text


def test_several_files_are_joined_in_order(tmp_path: Path) -> None:
    for name in "ba":
        (tmp_path / name).write_text(f"text of {name}")
    text = read_text([tmp_path / "b", str(tmp_path / "a")])
    assert (text.name, text.content) == ("b + a", "text of b\ntext of a")


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfword")
    assert read_text(path).content == "word"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("pipe é".encode())))
    assert read_text("-") == Text("standard input", "pipe é")


def test_the_embedded_sample_is_there_and_is_prose() -> None:
    text = read_text()
    assert text.name == "embedded sample"
    assert len(text.content.split()) > 1000


def test_an_installation_without_the_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    with pytest.raises(AbbeError, match="embedded sample is missing"):
        read_text(None)
    (tmp_path / "embedded").mkdir()
    (tmp_path / "embedded" / "sample.txt").write_bytes("ü".encode())
    assert read_text(None).content == "ü"


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_fingerprint_tells_texts_apart(first: str, second: str) -> None:
    assert (Text("x", first).fingerprint == Text("y", second).fingerprint) == (first == second)


BAD = {"hollow": b"", "blank": b" \n\t ", "latin": b"ok\nline two \xe9"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{0}/hollow", "hollow is empty"),
        ("{0}/blank", "blank is empty"),
        (["{0}/good", "{0}/hollow"], "hollow is empty"),
        ("{0}/latin", r"latin is not UTF-8 \(byte 0xe9 at position 12, line 2\)"),
        ("nowhere.txt", r"there is no text file nowhere\.txt"),
        ("{0}", "is a folder"),
        ([], "no text was named"),
        ("-", "standard input is empty"),
        (Path("To be or not to be"), "there is no text file To be or not to be"),  # always a path
    ],
)
def test_mistakes_are_one_line(source: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    for name, content in (BAD | {"good": b"good"}).items():
        (tmp_path / name).write_bytes(content)
    if not isinstance(source, Path):
        source = source.format(tmp_path) if isinstance(source, str) else [one.format(tmp_path) for one in source]
    with pytest.raises(AbbeError, match=message) as error:
        read_text(source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "To be or not to be",
        "one\ntwo",
        "one\r\ntwo",
        " ends with a full stop.",
        "Is this a file? No. It costs 3.50",
        "word " * 2000,  # too long for a path
        "zero \0 byte",
        "~nobody-of-this-name is a user",
        "in /usr/share there are words",
    ],
)
def test_a_string_that_is_no_path_is_the_text_itself(content: str) -> None:
    assert read_text(content) == Text("text", content)
    assert read_text([content, content]) == Text("text + text", f"{content}\n{content}")


def test_a_file_with_a_space_in_its_name_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("to be or not").write_text("from the file")
    assert read_text("to be or not").content == "from the file"


@pytest.mark.parametrize(
    "name", ["word", "my bok.txt", "./my book", "../my book", "~/my book", "/no such/my book", "x" * 300, "a\0b"]
)
def test_what_looks_like_a_path_is_no_text(name: str) -> None:
    """A typing error in a file name must not be measured as a text of three words."""
    with pytest.raises(AbbeError) as error:
        read_text(name)
    assert "a string with a space or a line break, or abbe.Text(name, content), is taken as the text itself" in str(
        error.value
    )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "content"), [("x", 5), ("x", None), ("x", b"bytes"), (5, "words"), (None, "words")])
def test_a_text_holds_strings(name: object, content: object) -> None:
    with pytest.raises(AbbeError, match="but must be a string"):
        Text(name, content)  # type: ignore[arg-type]
