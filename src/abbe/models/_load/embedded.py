"""The model that comes with abbe: a small GPT-2 trained on public-domain texts; see its MODEL_CARD.md."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from ..._errors import AbbeError
from .quiet import one_line

NAME = "abbe-gpt2-5M"  # in tables; `load("embedded")` loads it
FOLDER = Path(str(resources.files("abbe").joinpath("embedded")))
FACTS = "facts.json"  # written by the training script
EMBEDDED_FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", FACTS)


def embedded_folder() -> Path:
    """The folder of the embedded model; a missing file is an error.

    Returns:
        The folder.

    Raises:
        AbbeError: the installation is damaged.

    Examples:
        >>> (abbe.models.embedded_folder() / "model.safetensors").is_file()
        True
    """
    missing = [name for name in EMBEDDED_FILES if not (FOLDER / name).is_file()]
    if missing:
        raise AbbeError(f"this installation is damaged: the embedded model lacks {missing[0]}; install abbe again")
    return FOLDER


def embedded_about() -> str:
    """One sentence on shape, training and quality of the embedded model, from the facts of the training run.

    Returns:
        The sentence.

    Examples:
        >>> abbe.models.embedded_about()
        'GPT-2 shape, 6 layers x ...
    """
    with one_line("this installation is damaged: the embedded model's facts.json cannot be read; install abbe again"):
        facts = json.loads((FOLDER / FACTS).read_text(encoding="utf-8"))
        return (
            f"GPT-2 shape, {facts['layers']} layers x {facts['heads']} heads, {facts['parameters'] / 1e6:.3g} M "
            f"parameters, trained on {facts['books']} public-domain texts ({facts['training_bytes'] / 1e6:.3g} MB); "
            f"{facts['held_out_bits_per_byte']:.2f} bits per byte on held-out text "
            f"(5-gram: {facts['five_gram_bits_per_byte']:.2f})"
        )
