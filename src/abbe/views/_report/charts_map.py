"""Layer x head: how many tokens each head attends to, and how many of its selected tokens are separable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import altair as alt
import polars as pl

from .._shared.panels import WIDTH, Row, _ticks, numbers, rows_of, tip
from .._shared.series import Spec, finished, panel, source, unchecked
from .._shared.theme import THEMES, ThemeName
from .charts_table import about_lines, of_heads, rows_for, shown_size

if TYPE_CHECKING:
    from ...results import Run

_INKS: dict[
    ThemeName, tuple[str, float, str]
] = {  # below this place in the ramp the first is more legible, above it the last
    "light": ("#0a1420", 0.62, "#ffffff"),
    "dark": ("#ffffff", 0.42, "#0a1420"),
}
_WRITTEN = 10  # heads in a layer: with more there is no room for numbers in the cells


@dataclass(frozen=True)
class _Colours:
    """The values at both ends of the ramp; with `log`, equal steps are equal factors."""

    theme: ThemeName
    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, theme: ThemeName, values: Sequence[float], log: bool) -> _Colours:
        """From the smallest to the largest value, never an empty range."""
        low, high = min(values), max(values)
        if high <= low:
            low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
        return cls(theme, low, high, log)

    def channel(self, title: str) -> alt.Color:
        kind: Literal["log", "linear"] = "log" if self.log else "linear"
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        domain = [self.low, middle, self.high]
        scale = alt.Scale(type=kind, domain=domain, range=list(THEMES[self.theme].heat), interpolate="lab", clamp=True)
        ink = THEMES[self.theme].ink
        legend = alt.Legend(title=title, titleColor=ink, titleFontWeight="normal", gradientLength=200, format="~g")
        legend["values" if self.log else "tickCount"] = _ticks(self.low, self.high) if self.log else 5
        return alt.Color("value:Q", title=title, scale=scale, legend=legend)

    def ink(self, value: float) -> str:
        """Black or white, whichever is more legible on the colour of this value."""
        first, edge, last = _INKS[self.theme]
        inside = min(max(value, self.low), self.high)
        steps = (math.log(inside / self.low), math.log(self.high / self.low)) if self.log else (
            inside - self.low, self.high - self.low
        )  # fmt: skip
        return first if steps[0] < edge * steps[1] else last


@unchecked
def map_chart(run: Run, theme: ThemeName) -> Spec:
    """Dispersion and separability side by side, at the longest length."""
    size = shown_size(run)
    dispersion, separability = rows_for(run, "effective_tokens"), rows_for(run, "separability", size)
    panels = [
        _cells(dispersion, theme, "dispersion", "effective tokens", log=True),
        _cells(separability, theme, f"separability, N = {size}", "share of the selected in the ball", log=False),
    ]
    question = "Which heads select, and which disperse?"
    return finished(panels, question, about_lines(run), theme, independent=["color"])


def _cells(table: pl.DataFrame, theme: ThemeName, title: str, unit: str, *, log: bool) -> Spec | None:
    at = of_heads(table).filter(pl.col("length") == pl.col("length").max())
    rows = rows_of(at.select("layer", "head", "value"))
    values = [value for value in numbers(rows, "value") if value > 0 or not log]
    if not values:
        return None
    colours = _Colours.around(theme, values, log)
    gap, axis = alt.Scale(paddingInner=0.04), alt.Axis(labelOverlap="parity", ticks=False, domain=False)
    x, y = alt.X("head:O", title="head", scale=gap, axis=axis), alt.Y("layer:O", title="layer", scale=gap, axis=axis)
    present = [row for row in rows if row["value"] is not None]
    missing = [row for row in rows if row["value"] is None]
    cells = source(present).mark_rect()
    layers = [
        cells.encode(x=x, y=y, color=colours.channel(unit), tooltip=[tip("layer"), tip("head"), tip("value", unit)])
    ]
    if missing:
        layers.append(source(missing).mark_rect(color=THEMES[theme].control_pale).encode(x=x, y=y))
    layers += _written([(row, THEMES[theme].soft) for row in missing], x, y)
    if len({row["head"] for row in rows}) <= _WRITTEN:
        layers += _written([(row, colours.ink(row["value"])) for row in present], x, y)
    height = max(60, min(420, 26 * len({row["layer"] for row in rows})))
    return panel(layers, f"{title}, L = {at['length'][0]}", WIDTH, height)


def _written(inked: Sequence[tuple[Row, str]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Numbers in the cells, or a dash; one layer per ink, since a map has a single colour scale."""
    layers = []
    for ink in sorted({ink for _, ink in inked}):
        shown = [row | {"words": _short(row["value"])} for row, used in inked if used == ink]
        layers.append(source(shown).mark_text(fontSize=9, color=ink).encode(x=x, y=y, text=alt.Text("words:N")))
    return layers


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}"
