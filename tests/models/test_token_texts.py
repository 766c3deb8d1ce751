"""Tokens as a person reads them: exact characters, names of special tokens, and no broken characters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import begin_tokenizer, encoder_tokenizer
from tiny_models import byte_tokenizer

from abbe import AbbeError
from abbe.models import Text, Window, token_texts, windows

CONTINUED = "·"
BYTE = byte_tokenizer()
ENCODER = encoder_tokenizer()
BEGIN = begin_tokenizer()
HOSTILE = "<script>alert('x')</script> & \"quoted\" שלום עולם 😀👩‍👩‍👧 \t\r\n é e\u0301 \u202e\x00 end. "


def shown(content: str, length: int, tokenizer: Any = BYTE, index: int = 0, count: int = 3) -> tuple[str, ...]:
    text = Text("text", content)
    return token_texts(tokenizer, text, windows(text, [length], count, 0, tokenizer=tokenizer)[index])


def test_a_character_of_several_tokens_is_shown_once() -> None:
    assert shown("a😀é", 7) == ("a", "😀", *[CONTINUED] * 3, "é", CONTINUED)


def test_a_window_that_begins_inside_a_character_shows_it() -> None:
    text = Text("text", "ab😀cd")
    content = text.content.encode()
    tokens = torch.tensor(list(content[4:8]))  # the two last of the four bytes, c and d
    assert token_texts(BYTE, text, Window(4, 0, tokens, 2, 5)) == ("😀", CONTINUED, "c", "d")
    with pytest.raises(AbbeError, match="text has no window 0 of 4 tokens"):
        token_texts(BYTE, text, Window(4, 0, tokens, 2, 4))


@settings(max_examples=80)
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="·"), min_size=3, max_size=200),
    st.integers(2, 9),
)
def test_joined_tokens_are_the_text_of_the_window(content: str, length: int) -> None:
    if not content.strip() or len(content.encode()) < length:
        return
    text = Text("text", content)
    cut = windows(text, [length], 3, 0, tokenizer=BYTE)
    assert cut
    for window in cut:
        texts = token_texts(BYTE, text, window)
        assert len(texts) == length
        assert "".join(token for token in texts if token != CONTINUED) == content[window.start : window.end]


@pytest.mark.parametrize("tokenizer", [BYTE, BEGIN], ids=["bytes", "begin"])
def test_hostile_text_survives(tokenizer: Any) -> None:
    text = Text("hostile", HOSTILE * 30)
    cut = windows(text, [64], 5, 0, tokenizer=tokenizer)
    assert len(cut) == 5
    for window in cut:
        texts = token_texts(tokenizer, text, window)
        assert len(texts) == 64
        assert "\ufffd" not in "".join(texts)
        plain = [token for token in texts if token not in (CONTINUED, "<s>")]
        assert "".join(plain) == text.content[window.start : window.end]


def test_a_begin_token_is_shown_by_its_name() -> None:
    texts = shown("plain words " * 30, 20, BEGIN)
    assert texts[0] == "<s>"
    assert "".join(texts[1:]) in "plain words " * 30


def test_encoder_tokens_have_names_and_keep_the_spaces_that_the_tokenizer_drops() -> None:
    texts = shown("Plain  words\nhere " * 30, 30, ENCODER)
    assert (texts[0], texts[-1]) == ("[CLS]", "[SEP]")
    assert "".join(texts[1:-1]) in "Plain  words\nhere " * 30
    assert any(token.startswith("  w") for token in texts)


def test_long_tokens_and_long_gaps_are_cut() -> None:
    """An unknown word is one token, however long; spaces between words are none."""
    content = f"ab {'é' * 500} cd{' ' * 500}ef"
    texts = shown(content, 9, ENCODER, count=1)
    assert texts[3] == " " + "é" * 63 + "…"
    assert texts[4:8] == (" c", "d", " " * 16 + "e", "f")


class Recorder:
    """A tokenizer that writes down how many characters it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.given = tokenizer, 0

    def __call__(self, part: str, **options: Any) -> Any:
        self.given += len(part)
        return self.tokenizer(part, **options)

    def convert_ids_to_tokens(self, ids: list[int]) -> Any:
        return self.tokenizer.convert_ids_to_tokens(ids)


def test_a_line_of_ten_megabytes_is_not_tokenised_again() -> None:
    content = "some words, no line. " * 500_000
    start = 5_000_003
    window = Window(64, 0, torch.tensor(list(content[start : start + 64].encode())), start, start + 64)
    recorder = Recorder(BYTE)
    assert token_texts(recorder, Text("line", content), window) == tuple(content[start : start + 64])
    assert recorder.given < 10_000


class Parity:
    """A tokenizer whose tokens depend on everything before: a letter's number, plus 1000 at even places."""

    def __call__(self, part: str, **_: Any) -> Any:
        ids = [ord(letter) + 1000 * ((len(part) - place) % 7 == 0) for place, letter in enumerate(part)]
        spans = [(place, place + 1) for place in range(len(part))]
        return {"input_ids": ids, "offset_mapping": spans, "special_tokens_mask": [0] * len(part)}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(one) for one in ids]


def test_more_surroundings_are_taken_until_the_tokens_are_the_same() -> None:
    content = "abcdefghij" * 2000
    encoded = Parity()(content)
    window = Window(20, 0, torch.tensor(encoded["input_ids"][7000:7020]), 7000, 7020)
    recorder = Recorder(Parity())
    assert token_texts(recorder, Text("text", content), window) == tuple(content[7000:7020])
    assert recorder.given > 4020 + len(content)  # the second try had the whole text


def test_another_text_is_reported() -> None:
    window = windows("one text of some words", [8], 1, 0, tokenizer=BYTE)[0]
    with pytest.raises(AbbeError, match=r"other has no window 0 of 8 tokens: another text\?"):
        token_texts(BYTE, Text("other", "x" * 40), window)
