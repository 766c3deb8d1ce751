"""A small model and a text on disk to run commands on: `pytest_plugins = ("cli_fixtures",)` in a test module."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with a context of 64 and its tokenizer, in the layout of the hub."""
    made = tmp_path_factory.mktemp("models") / "tiny"
    tiny_models.gpt2(vocab_size=256).save_pretrained(made)  # type: ignore[operator]
    tiny_models.byte_tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("In the beginning there was a lens, and it was ground by hand. " * 40)
    return path
