"""Text from files, standard input and the embedded sample; mistakes in one line."""

from __future__ import annotations

import hashlib
import io
import sys
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abbe import AbbeError
from abbe.models import Text, read_text


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
