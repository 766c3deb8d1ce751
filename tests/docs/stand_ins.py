"""What a reader has and a test has not: pulled models, a model of the hub, a folder of their own, long texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tiny_models
from doc_blocks import Document
from doc_python import files_named

import abbe

COMMIT = "0123456789" * 4


@dataclass(frozen=True)
class Shape:
    """Of the network that stands for `smollm2`: as deep as the document's patterns, as long as its windows."""

    layers: int = 2
    context: int = 128
    characters: int = 12_000  # of every text; few windows fit into a short one


def move_in(document: Document, shape: Shape, place: Path, patch: pytest.MonkeyPatch) -> None:
    """Make `place` the working folder of a reader who has pulled smollm2, fetched gpt2 and brought model and texts."""
    here = place / "here"
    (here / "figures").mkdir(parents=True)
    sample = abbe.read_text().content
    for name in files_named(document):
        (here / name).write_text((sample * (1 + shape.characters // len(sample)))[: shape.characters])
    sizes = {"num_hidden_layers": shape.layers, "max_position_embeddings": shape.context}
    network = tiny_models.llama(vocab_size=2048, **sizes)
    _save(network, place / "cache" / "models" / "smollm2", shape.context)
    facts = {"what": "a tiny stand-in for SmolLM2"}
    (place / "cache" / "models" / "smollm2" / "ABOUT.json").write_text(json.dumps(facts))
    _save(network, here / "my-model", shape.context)
    hub = place / "hub" / "models--gpt2"
    gpt2 = tiny_models.gpt2(vocab_size=2048, n_positions=shape.context)
    _save(gpt2, hub / "snapshots" / COMMIT, shape.context)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(COMMIT)
    patch.setenv("ABBE_CACHE", str(place / "cache"))
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(place / "hub"))
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    patch.chdir(here)


def save_swap(path: Path, what: str) -> None:
    """A file of a swap of the stand-in for smollm2, as `abbe calibrate` leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with abbe.swap(abbe.load("smollm2"), what) as handle:
        handle.save(path)


def _save(network: Any, folder: Path, context: int) -> None:
    """With the embedded model's tokenizer: the needle test needs words."""
    network.save_pretrained(folder)
    tokenizer = abbe.load("embedded").tokenizer
    tokenizer.model_max_length = context
    tokenizer.save_pretrained(folder)
