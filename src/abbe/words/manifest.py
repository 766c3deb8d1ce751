"""Reading a manifest for people: parts that may be missing, and names without the folders of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Manifest = Mapping[str, Any]


def part_of(manifest: Manifest, name: str) -> Manifest:
    """One part (model, text, settings, ...); empty if it is missing, as in a folder of an older version."""
    part = manifest.get(name)
    return part if isinstance(part, Mapping) else {}


def for_others(manifest: Manifest) -> dict[str, Any]:
    """Pages and figures are passed on, so they must not show where model and text lie on this machine."""
    model = dict(part_of(manifest, "model"))
    if isinstance(model.get("source"), str):
        model["source"] = Path(model["source"]).name
    if isinstance(model.get("name"), str):
        model["name"] = without_folder(model["name"])
    given = dict(part_of(manifest, "given"))
    if given.get("text"):
        given["text"] = [without_folder(file) for file in given["text"]]
    shown = {key: value for key, value in manifest.items() if key != "call"}
    return shown | {"model": model} | ({"given": given} if given else {})


def model_name(manifest: Manifest) -> str:
    return without_folder(str(part_of(manifest, "model").get("name") or "this model"))


def text_name(manifest: Manifest) -> str:
    return str(part_of(manifest, "text").get("name") or "a text")


def precision_of(manifest: Manifest) -> str:
    """One sentence about a model of less than full precision; empty for others, and if it is not known."""
    dtype = str(part_of(manifest, "model").get("dtype") or "")
    if dtype in ("", "float32", "float64"):
        return ""
    return (
        f"The weights are {dtype}, less than float32: docs/explanation/precision.md says how much that moves every "
        "measure."
    )


def in_place(manifest: Manifest) -> list[str]:
    """The normalizers that the model computes with, each with its heads; empty for softmax."""
    return [str(line) for line in part_of(manifest, "model").get("normalizers") or ()]


def in_place_words(manifest: Manifest) -> str:
    """One sentence about them; empty for softmax."""
    if not (lines := in_place(manifest)):
        return ""
    return f"Normalizers in place: {'; '.join(lines)}. Limits from the range of the logits hold for softmax only."


def without_folder(name: str) -> str:
    """A hub id keeps its slash; a path of this machine loses its folders."""
    return Path(name).name if Path(name).is_absolute() else name
