"""Stand-ins for what a reader has and a test does not: pulled models, a model of the hub, a folder, long texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import stand_in_harness
import tiny_models

import abbe
from abbe.results import FORMAT
from abbe.training import Training

COMMIT = "0123456789" * 4
VOCABULARY = 2048  # of the embedded tokenizer


@dataclass(frozen=True)
class Shape:
    """Shape of the network that stands for `smollm2`: as deep as the document's patterns, as long as its windows."""

    layers: int = 2
    context: int = 128
    characters: int = 12_000  # of every text; few windows fit into a short one


def build(place: Path, shape: Shape, texts: set[Path]) -> None:
    """What a reader has who has pulled smollm2, fetched gpt2, and brought a model and texts."""
    here, pulled, hub = place / "here", place / "cache" / "models" / "smollm2", place / "hub" / "models--gpt2"
    here.mkdir()
    sample = abbe.read_text().content
    for name in texts:
        (here / name).write_text((sample * (1 + shape.characters // len(sample)))[: shape.characters])
    sizes = {"num_hidden_layers": shape.layers, "max_position_embeddings": shape.context}
    network = tiny_models.llama(vocab_size=VOCABULARY, **sizes)
    _save(network, pulled, shape.context)
    (pulled / "ABOUT.json").write_text(json.dumps({"what": "a tiny stand-in for SmolLM2"}))
    _save(network, here / "my-model", shape.context)
    gpt2 = tiny_models.gpt2(vocab_size=VOCABULARY, n_positions=shape.context)
    _save(gpt2, hub / "snapshots" / COMMIT, shape.context)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(COMMIT)


def move_in(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Work there, with these models and no network."""
    patch.setenv("ABBE_CACHE", str(place / "cache"))
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(place / "hub"))
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    patch.chdir(place / "here")
    stand_in_harness.install(patch)


def save_training(folder: Path) -> None:
    """A run folder as `abbe.Monitor` leaves it after two steps."""
    heads = {"entropy": {"value": [[1.0, 2.0]], "limit": 3.0}, "max_logit": {"value": [[4.0, 5.0]]}}
    model = {f"{name}_{end}": 2.0 for name in heads for end in ("min", "mean", "max")}
    same = {"loss": 2.0, "layout": [2], "model": model, "heads": heads, "alerts": []}
    manifest = {"format": FORMAT, "study": "watch", "finished": True, "model": {"name": "tiny"}}
    empty = {"text": {}, "settings": {}, "self_check": {}, "skipped": []}
    Training([{"step": step, **same} for step in (1, 50)], manifest | empty).save(folder)


def save_swap(path: Path, what: str) -> None:
    """A file of a swap of the stand-in for smollm2, as `abbe calibrate` leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with abbe.swap(abbe.load("smollm2"), what) as handle:
        handle.save(path)


def _save(network: Any, folder: Path, context: int) -> None:
    """Saves it with the embedded model's tokenizer: the needle test needs words."""
    network.save_pretrained(folder)
    tokenizer = abbe.load("embedded").tokenizer
    tokenizer.model_max_length = context
    tokenizer.save_pretrained(folder)
