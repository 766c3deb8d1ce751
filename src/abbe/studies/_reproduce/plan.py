"""Which runs a figure of arXiv 2508.17821 needs: the paper's protocol as settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..._errors import AbbeError
from ...words.paper import FIGURES
from .._engine.settings import Settings, Vectors

SIZE = 5  # of figure 2a
STEPS = (1e-3, 1e-1, 10.0)  # eps of figure 4
LENGTHS = (32, 64, 128, 256, 512, 1024)
_SIZES_2B = (1, 2, 5, 10, 20, 50, 100)  # the paper: 1, 5, 10, 20, 100
_SIZES_2C = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512),
)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SIZES_3 = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 100)
_TEMPERATURES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_VECTORS: tuple[Vectors, ...] = ("embedding", "value")  # the paper's, and what attention really adds up


@dataclass(frozen=True)
class Part:
    """One run of a figure."""

    figure: str
    vectors: Vectors
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.figure}-{self.vectors}"


def plan(
    figures: Sequence[str], context: int | None, windows: int, queries: int | None, seed: int, quick: bool
) -> list[Part]:
    """The runs of these figures, in the paper's order."""
    unknown = [name for name in figures if name not in FIGURES]
    if unknown or not figures:
        raise AbbeError(f"there is no figure {', '.join(unknown) or 'named'}: choose from {', '.join(FIGURES)}, or all")
    if windows < 1:
        raise AbbeError(f"windows is {windows}, but must be at least 1")
    lengths = tuple(length for length in LENGTHS if context is None or length <= context)
    if len(lengths) < 2:
        raise AbbeError(
            f"model and text have room for windows of {context} tokens: the figures need at least {LENGTHS[1]}"
        )
    chosen = lengths[::-2][::-1] if quick else lengths  # always with the longest
    common = Settings(
        lengths=chosen, windows=windows, queries=queries, sizes=(SIZE,), vectors="embedding", normalizer=None,
        temperatures=(), seed=seed, level=0.95, resamples=100 if quick else 1000,
    )  # fmt: skip
    return [
        Part(name, vectors, replace(_settings(name, common, lengths[-1], quick), vectors=vectors))
        for name in FIGURES
        if name in figures
        for vectors in (_VECTORS if name != "4" else _VECTORS[:1])  # figure 4 is about weights, not vectors
    ]


def _settings(figure: str, common: Settings, longest: int, quick: bool) -> Settings:
    if figure == "2a":
        return replace(common, expected=True)
    if figure == "2c":
        return replace(common, sizes=_fitting(_POWERS if quick else _SIZES_2C, longest), readings=True)
    at_longest = replace(common, lengths=(longest,))
    if figure == "4":
        return replace(at_longest, temperatures=_TEMPERATURES[:: 2 if quick else 1], steps=STEPS)
    sizes = _fitting(_SIZES_2B if figure == "2b" else _SIZES_3, longest)
    # The same queries for every size, or sizes could not be compared.
    return replace(at_longest, sizes=sizes, more_than=sizes[-1], expected=figure == "2b")


def _fitting(sizes: Sequence[int], longest: int) -> tuple[int, ...]:
    return tuple(n for n in sizes if n <= longest // 2)
