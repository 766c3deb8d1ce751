"""The model, text and folder of a study: given by name, or already in memory."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from .. import models
from .._arguments import shown
from .._errors import AbbeError
from ..models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Window, Windows, as_device, as_dtype
from .watch import Watch, watching

ModelLike = str | os.PathLike[str] | LoadedModel | nn.Module
TextLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text
_LONG_TOKEN = 32  # characters: a text with more per token is not counted beforehand

FolderLike = str | os.PathLike[str]
S = TypeVar("S")


@dataclass(frozen=True)
class Placed:
    """Where and in which precision to load a model; None for the default, or as it is in memory."""

    device: DeviceLike | None = None
    dtype: DtypeLike | None = None
    device_map: DeviceMap | None = None


_USUAL = Placed()


@dataclass(eq=False)
class Job(Generic[S]):
    """A study at work: its inputs, and when it started."""

    model: LoadedModel
    text: Text
    settings: S
    folder: Path | None
    watch: Watch
    started: float = field(default_factory=time.perf_counter, init=False)

    def __post_init__(self) -> None:
        """What the study prepares from its inputs; called by the initialiser above only if it exists here."""


def load_inputs(
    model: ModelLike, text: TextLike | None, folder: FolderLike | None, tokenizer: Any, progress: bool, placed: Placed
) -> tuple[Path | None, Text, LoadedModel]:
    """The folder of a study, its text and its model; the model is loaded last, after the quick refusals."""
    place, source = as_folder(folder), as_text(text)
    return place, source, as_model(model, tokenizer, progress, placed)


def as_model(model: ModelLike, tokenizer: Any, progress: bool = False, placed: Placed = _USUAL) -> LoadedModel:
    """Load by name, or take the model in memory, without wrappers of torch.compile or parallel training."""
    if isinstance(model, LoadedModel):
        inner = models.unwrapped(model.network, alone=True)
        return _as_it_is(model if inner is model.network else dataclasses.replace(model, network=inner), placed)
    if isinstance(model, nn.Module) or isinstance(getattr(model, "_module", None), nn.Module):
        network: Any = model  # or a wrapper of another package, which is refused by name
        wrapped = models.wrap(network, tokenizer)
        if tokenizer is None:
            raise AbbeError("a network comes without its tokenizer: give tokenizer=...")
        return _as_it_is(wrapped, placed)
    if not isinstance(model, str | os.PathLike) or not isinstance(os.fspath(model), str):
        raise AbbeError(
            f"the model is {shown(model)}, but must be a name, a folder, what abbe.load gave, or a transformers model"
        )
    if not os.fspath(model).strip():
        raise AbbeError("the model has no name: give embedded, smollm2, a folder, a .gguf file or a hub id")
    with watching(progress) as watch:
        watch.part = f"loading {os.fspath(model)}"
        return models.load(model, **vars(placed))


def _as_it_is(model: LoadedModel, placed: Placed) -> LoadedModel:
    """A network in memory is never moved or converted: another device or precision is refused."""
    if placed.device_map is not None:
        raise AbbeError(f"device_map is for models by name: {model.name} is in memory already, on {model.devices}")
    if placed.device is not None:
        wanted = as_device(placed.device)
        devices = [torch.device(one) for one in model.devices.split("+")]
        if any(one.type != wanted.type or wanted.index not in (None, one.index) for one in devices):
            raise AbbeError(
                f"device is {wanted}, but {model.name} is in memory already, on {model.devices}, and stays there: "
                "leave device out, or move the network first"
            )
    if placed.dtype is not None:
        name = str(as_dtype(placed.dtype)).removeprefix("torch.")
        if model.precision != name:
            raise AbbeError(
                f"dtype is {name}, but {model.name} is in memory already, in {model.precision}, and stays so: "
                "leave dtype out, or convert the network first"
            )
    return model


def as_text(text: TextLike | None) -> Text:
    return text if isinstance(text, Text) else models.read_text(text)


def as_folder(folder: FolderLike | None) -> Path | None:
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not isinstance(os.fspath(folder), str) or not os.fspath(folder):
        raise AbbeError(f"folder is {shown(folder)}, but must be the path of a folder")
    if "\0" in os.fspath(folder):
        raise AbbeError(f"folder is {shown(folder)}, which no system accepts as a path")
    path = Path(folder)
    # Checked before a model is loaded: there is no point in measuring what cannot be kept.
    if blocked := next((above for above in path.parents if os.path.isfile(above)), None):
        raise AbbeError(f"cannot make the run folder {path}: {blocked} is a file")
    return path


def room_for(model: LoadedModel, text: Text, shortest: int) -> int | None:
    """The longest window: the model's context, or all of a text that is shorter than the shortest default window."""
    if len(text.content) > shortest * _LONG_TOKEN or not callable(model.tokenizer):
        return model.context
    tokens = len(model.tokenizer(text.content, truncation=False, padding=False, verbose=False)["input_ids"])
    return min(tokens, model.context or tokens) if 2 <= tokens < shortest else model.context


def windows_for(model: LoadedModel, text: Text, lengths: Sequence[int], count: int, seed: int) -> Windows:
    """Windows of the text in the model's tokens; refuses tokens beyond the network's vocabulary."""
    cut = models.windows(text, lengths, count, seed, tokenizer=model.tokenizer, context=model.context)
    check_vocabulary(model, cut)
    return cut


def check_vocabulary(model: LoadedModel, windows: Sequence[Window]) -> None:
    """A token beyond the embedding would fail deep in the network, or on some devices read out of bounds."""
    network: Any = model.network
    embedding = None
    with suppress(NotImplementedError):  # of two towers, for example
        embedding = network.get_input_embeddings()
    size = getattr(embedding, "num_embeddings", None)
    largest = max((int(window.tokens.max()) for window in windows), default=0)
    if isinstance(size, int) and largest >= size:
        token = model.tokenizer.convert_ids_to_tokens(largest)
        raise AbbeError(
            f"the text has token {largest} ({token!r}), but {model.name} knows only {size:,} tokens, while its "
            f"tokenizer has {len(model.tokenizer):,}: give the tokenizer that belongs to the model"
        )
