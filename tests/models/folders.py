"""Model folders to be loaded, changed and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import byte_tokenizer

from abbe import AbbeError
from abbe.models import load

IDS = torch.tensor([[72, 101, 108, 108, 111, 33]])


def save(network: Any, folder: Path) -> Path:
    network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def change(folder: Path, name: str = "config.json", **entries: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | entries))
    return folder


def weights(folder: Path, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    file = folder / "model.safetensors"
    save_file(changed(load_file(file)), file, metadata={"format": "pt"})
    return folder


def refusal(name: object, **options: Any) -> str:
    """Why a model cannot be loaded: always one line."""
    with pytest.raises(AbbeError) as error:
        load(name, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700
    return str(error.value)
