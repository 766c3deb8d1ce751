"""How series look: hues in a fixed order, then the same hues with other dashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from .._shared.panels import Look, Row, rows_of
from .._shared.theme import Theme

_DASHES = ((1, 0), (6, 3), (2, 3))
CONTROL_DASH = (7, 4)
BROAD = 4.5  # pixels of a line on which its controls lie: it stays visible below them
SEEDS: dict[str, Any] = {"filled": True, "size": 22, "opacity": 0.6}  # points of single seeds
MEANS: dict[str, Any] = {"filled": True, "size": 46, "opacity": 1}


def hues(theme: Theme) -> tuple[str, ...]:
    return theme.selected, theme.claim, theme.third, theme.fourth, theme.ink, theme.control


def looks_of(names: Iterable[str], theme: Theme) -> dict[str, Look]:
    """By name, in this order."""
    colours = hues(theme)
    return {
        name: Look(name, colours[place % len(colours)], _DASHES[place // len(colours) % len(_DASHES)])
        for place, name in enumerate(dict.fromkeys(names))
    }


def over_seeds(rows: pl.DataFrame, by: Sequence[str], *values: str) -> list[Row]:
    """The mean over seeds; null where no seed has a value."""
    return rows_of(rows.group_by(by, maintain_order=True).agg(pl.col(name).mean() for name in values))
