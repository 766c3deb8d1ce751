"""Inputs of a study: model, text and folder, by name or already in memory, and its checked settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from .. import models
from .._arguments import between, is_whole, plain, positive, several, shown, whole, window_lengths
from .._errors import AbbeError
from ..measures import DEFAULT_GRID, USUAL_SIZE, checked_grid
from ..models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Loss, Text, Tokens, Windows, as_device, as_dtype
from ..normalizers import Normalizer, normalizer
from .watch import watching

ModelLike = str | os.PathLike[str] | LoadedModel | nn.Module
TextLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text
TokensLike = object  # what `abbe.models.read_tokens` takes
FolderLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Placed:
    """Where and in which precision to load a model; None for the default, or as it is in memory."""

    device: DeviceLike | None = None
    dtype: DtypeLike | None = None
    device_map: DeviceMap | None = None


_USUAL = Placed()


def as_model(
    model: ModelLike, tokenizer: Any, progress: bool = False, placed: Placed = _USUAL, by_ids: bool = False,
    loss: Loss | None = None,
) -> LoadedModel:  # fmt: skip
    """Load by name, or take the model in memory, without wrappers of torch.compile or parallel training.

    A study `by_ids` needs no tokenizer.
    """
    if loss is not None and not isinstance(model, nn.Module):
        raise AbbeError("loss=... is for a network in memory; for what abbe.models.wrap gave, give it there")
    if isinstance(model, LoadedModel):
        inner = models.unwrapped(model.network, alone=True)
        return _as_it_is(model if inner is model.network else replace(model, network=inner), placed)
    if isinstance(model, nn.Module) or isinstance(getattr(model, "_module", None), nn.Module):
        network: Any = model  # or a wrapper of another package, which is refused by name
        wrapped = models.wrap(network, tokenizer, loss=loss)
        if tokenizer is None and not by_ids:
            raise AbbeError("a network comes without its tokenizer: give tokenizer=..., or token ids, tokens=...")
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


def check_softmax(model: LoadedModel, what: str) -> None:
    """Refuse a model that computes with other normalizers already, where a study fits them to softmax."""
    if (standing := model.plan) is not None:
        raise AbbeError(
            f"{model.name} computes with other normalizers already ({'; '.join(standing.as_lines())}), and {what} "
            "starts from softmax: give the model without its swap or plan"
        )


def as_text(text: TextLike | None, tokens: object = None) -> Text:
    """The text of a study, or the token ids in its place."""
    if tokens is not None:
        if text is not None:
            raise AbbeError("text and tokens are two things to measure on: give one of them")
        return models.read_tokens(tokens)
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


def windows_for(model: LoadedModel, text: Text, lengths: Sequence[int], count: int, seed: int) -> Windows:
    """Windows of the text in the model's tokens; refuses tokens beyond the network's vocabulary.

    A token beyond the embedding would fail deep in the network, or on some devices read out of bounds.
    """
    cut = models.windows(text, lengths, count, seed, tokenizer=model.tokenizer, context=model.context)
    network: Any = model.network
    embedding = None
    with suppress(NotImplementedError):  # of two towers, for example
        embedding = network.get_input_embeddings()
    size = getattr(embedding, "num_embeddings", None)
    largest = max((int(window.tokens.max()) for window in cut), default=0)
    if isinstance(size, int) and largest >= size:
        if isinstance(text, Tokens):
            raise AbbeError(f"{text.name} holds the id {largest}, but {model.name} knows only {size:,} tokens")
        token = model.tokenizer.convert_ids_to_tokens(largest)
        raise AbbeError(
            f"the text has token {largest} ({token!r}), but {model.name} knows only {size:,} tokens, while its "
            f"tokenizer has {len(model.tokenizer):,}: give the tokenizer that belongs to the model"
        )
    return cut


# -- Settings ---------------------------------------------------------------------------------------------------------

Vectors = Literal["embedding", "hidden", "value", "output"]
LENGTHS = (64, 256, 1024)
REPORT_LENGTHS = (64, 128, 256, 512, 1024)
REPORT_TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0)
MOST_RESAMPLES = 1_000_000  # all are drawn at once: more would fill the memory without any benefit


@dataclass(frozen=True)
class Settings:
    """Everything that determines the numbers, apart from model and text."""

    lengths: tuple[int, ...]
    windows: int
    queries: int | None = None  # None: all
    sizes: tuple[int, ...] = DEFAULT_GRID
    vectors: Vectors = "value"
    normalizer: str | None = None  # None: the model's own
    temperatures: tuple[float, ...] = ()
    seed: int = 0
    level: float = 0.95
    resamples: int = 1000
    steps: tuple[float, ...] = ()  # of finite differences, at every temperature
    expected: bool = False  # also the proved bounds on the mean distance of random sets
    more_than: int = 0  # leave out queries that see at most this many keys
    readings: bool = False  # critical N under every reading of "expected" and of the test

    def __post_init__(self) -> None:
        """Checked here alone, numbers of numpy and torch and single values included; the windows check the lengths."""
        if self.vectors not in get_args(Vectors):
            raise AbbeError(f"vectors is {self.vectors!r}, but must be one of {', '.join(get_args(Vectors))}")
        given: Any = self.normalizer
        if given is not None:
            if not isinstance(given, str | Normalizer):
                wanted = "a spec such as 'entmax:alpha=1.5', or a Normalizer"
                raise AbbeError(f"normalizer is {shown(given)}, but must be {wanted}")
            normalizer(str(given))
        checked = {
            "lengths": window_lengths(self.lengths),
            "windows": whole("windows", self.windows),
            "queries": count_of_queries(self.queries),
            "normalizer": None if given is None else str(given),
            "sizes": checked_grid(several("sizes", self.sizes)),
            "temperatures": positive("temperatures", self.temperatures),
            "steps": positive("steps", self.steps),
            "seed": checked_seed(self.seed),
            "level": between("level", self.level, 0, 1, example=0.95),
            "resamples": whole("resamples", self.resamples, least=1, most=MOST_RESAMPLES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def reads_rows(self) -> bool:
        """Whether a measure beyond the usual ones needs the rows themselves."""
        return bool(self.steps) or self.expected or self.readings

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self) | {"queries": self.queries or "all"}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """The inverse of `as_json`."""
        lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **lists, "queries": count_of_queries(content["queries"])})


def plain_settings(settings: Any) -> dict[str, Any]:
    """A dataclass as it returns from JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}


def settings_for(
    context: int | None, *, lengths: Any, sizes: Any = None, usual: Sequence[int] = LENGTHS, **others: Any
) -> Settings:
    """Fill in what depends on the model: windows of the usual lengths, as far as they fit its context."""
    if lengths is None:
        lengths = [length for length in usual if context is None or length <= context] or [context or LENGTHS[0]]
    return Settings(lengths=lengths, sizes=DEFAULT_GRID if sizes is None else sizes, **others)


def window_settings(length: int, windows: int, queries: int, seed: int, level: float, resamples: int) -> Settings:
    """Settings of a study that reads losses and sets of the usual size from windows of one length."""
    return Settings((length,), windows, queries, (USUAL_SIZE,), seed=seed, level=level, resamples=resamples)


def count_of_queries(queries: int | str | None) -> int | None:
    """Queries per window; None for "all"."""
    if queries is None or (isinstance(queries, str) and queries == "all"):
        return None
    return whole("queries", queries, least=1, other=", or 'all'")


def checked_seed(seed: int) -> int:
    value = plain(seed)
    if not is_whole(value) or not 0 <= value < 2**63:
        raise AbbeError(f"seed is {shown(seed)}, but must be a whole number from 0 to 2**63 - 1")
    return int(value)
