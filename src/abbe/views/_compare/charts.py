"""What every normalizer costs against what it gains: loss against active tokens, and against sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import altair as alt

from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE, CALIBRATED, JUMPS
from .._shared.labels import Box, Point, place_names
from .._shared.panels import HEIGHT, WIDTH, Look, Row, numbers, renamed, rows_of, tip
from .._shared.series import Spec, finished, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .words import name_of

if TYPE_CHECKING:
    from ...studies import Comparison

QUESTION = "What does each normalizer cost, and what does it gain?"
_LONGEST = 27  # letters that have room beside a point


def looks_of(comparison: Comparison, theme: Theme) -> dict[str, Look]:
    """One look per normalizer in all charts; a calibrated one is dashed, in the colour of the plain one."""
    hues = (theme.selected, theme.third, theme.fourth, theme.claim, theme.ramp[0], theme.bad, theme.control)
    looks: dict[str, Look] = {}
    labels = short_names(comparison.table["normalizer"].to_list())
    plain = [name for name in comparison.table["normalizer"] if name != BASELINE and CALIBRATED not in name]
    for name in comparison.table["normalizer"]:
        if name == BASELINE:
            looks[name] = Look(BASELINE, theme.proved, width=2.6)
        else:
            base = name.removesuffix(CALIBRATED)
            hue = hues[plain.index(base) % len(hues)] if base in plain else theme.soft
            looks[name] = Look(labels[name], hue, (6, 3) if base != name else (1, 0))
    return looks


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names in charts: long ones keep both ends, and a number if need be; tooltips and tables show them in full."""
    short_ones: dict[str, str] = {}
    for name in names:
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 14]}…{name[-13:]}"
        same = sum(other == short or other.startswith(f"{short} (") for other in short_ones.values())
        short_ones[name] = f"{short} ({same + 1})" if same else short
    return short_ones


@dataclass(frozen=True)
class _Scale:
    """Converts a number to its place in a panel, in pixels, and back."""

    low: float
    high: float
    size: float
    log: bool = False

    def place(self, value: float) -> float:
        return self.size * (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def value(self, place: float) -> float:
        at = self._at(self.low) + place / self.size * (self._at(self.high) - self._at(self.low))
        return math.exp(at) if self.log else at

    def _at(self, value: float) -> float:
        return math.log(value) if self.log else value

    @property
    def domain(self) -> dict[str, Any]:
        return {"domain": [self.low, self.high], "nice": False} | ({"type": "log"} if self.log else {"zero": False})


def _scale(values: Sequence[float], size: float, around: float, log: bool = False) -> _Scale:
    low, high = min(values), max(values)
    if log:
        factor = (high / low) ** around if high > low else 2.0
        return _Scale(low / factor, high * factor, size, True)
    room = around * (high - low) if high > low else abs(high) * 0.1 or 1.0
    return _Scale(low - room, high + room, size)


@unchecked
def pareto_chart(comparison: Comparison, theme: ThemeName) -> Spec:
    """Two panels, a point per normalizer with both intervals; a line joins those that none beats."""
    rows, looks = rows_of(comparison.table), looks_of(comparison, THEMES[theme])
    rows = [row | {"shown": looks[row["normalizer"]].label} | _paired(row, rows[0]["loss"]) for row in rows]
    rows = [row | {"full": name_of(row["normalizer"])} for row in rows]
    rows = [row | {"counted": "only between its jumps" if row[JUMPS] else "everywhere"} for row in rows]
    colours = [look.colour for look in looks.values()]
    scale = alt.Scale(domain=[look.label for look in looks.values()], range=colours)
    colour = alt.Color("shown:N", title=None, scale=scale, legend=None)
    panels = [
        _panel(rows, "active", "active tokens", colour, THEMES[theme]),
        _panel(rows, "sensitivity_ratio", "sensitivity at equal selectivity, over baseline", colour, THEMES[theme]),
    ]
    return finished(panels, QUESTION, about_lines(comparison), theme)


def _paired(row: Row, baseline: float | None) -> Row:
    """The interval of the paired difference, around the baseline's loss: it leaves out what windows have in common."""
    ends = row["loss_change_low"], row["loss_change_high"]
    alone = row["normalizer"] == BASELINE
    low, high = (None if baseline is None or alone or end is None else baseline + end for end in ends)
    return {"paired_low": low, "paired_high": high}


def about_lines(comparison: Comparison) -> list[str]:
    manifest = comparison.manifest
    windows, length = len(manifest.get("windows", ())), part_of(manifest, "settings").get("length")
    return [f"{model_name(manifest)} · {windows} windows of {length} tokens · {text_name(manifest)}"]


def _panel(rows: Sequence[Row], field: str, title: str, colour: alt.Color, theme: Theme) -> Spec | None:
    present = [row for row in rows if row["loss"] is not None and (row[field] or 0) > 0]
    if not present:
        return None
    low, high = f"{field}_low", f"{field}_high"
    across = _scale([x for x in numbers(present, field, low, high) if x > 0], WIDTH, 0.14, log=True)
    up = _scale(numbers(present, "loss", "paired_low", "paired_high"), HEIGHT, 0.1)
    x = alt.X(f"{field}:Q", title=title, scale=alt.Scale(**across.domain), axis=alt.Axis(tickCount=4, format="~g"))
    y = alt.Y("loss:Q", title="loss (nats)", scale=alt.Scale(**up.domain), axis=alt.Axis(tickCount=6))
    change = (tip("loss_change_low", "difference from the baseline, from"), tip("loss_change_high", "to"))
    counted = [tip("counted", "counted", "N")] if field == "sensitivity_ratio" else []
    tips = [tip("full", "normalizer", "N"), tip(field, title), *counted, tip("loss"), *change]
    points = source(present[::-1]).mark_point(filled=True, size=90, opacity=1)
    layers = [
        *_frontier(present, field, x, y, theme),
        *_bars(present, low, high, lambda bars: bars.encode(x=renamed(x, low), x2=f"{high}:Q", y=y, color=colour)),
        *_bars(present, "paired_low", "paired_high",
               lambda bars: bars.encode(x=x, y=renamed(y, "paired_low"), y2="paired_high:Q", color=colour)),
        points.encode(x=x, y=y, color=colour, tooltip=tips),
        *_names(present, field, across, up, x, y, theme),
    ]  # fmt: skip
    return panel(layers, f"loss against {title.partition(',')[0]}")


def _bars(rows: Sequence[Row], low: str, high: str, drawn: Callable[[alt.Chart], alt.Chart]) -> list[alt.Chart]:
    present = [row for row in rows if row[low] is not None and row[high] is not None and row[low] > 0]
    return [drawn(source(present).mark_rule(strokeWidth=1.6, opacity=0.7))] if present else []


def frontier(rows: Sequence[Row], field: str) -> list[Row]:
    """The rows that no other beats in both `field` and loss (lower is better), in rising order."""
    ordered = sorted(rows, key=lambda row: (row[field], row["loss"]))
    best: list[Row] = []
    for row in ordered:
        if not best or row["loss"] < best[-1]["loss"]:
            best.append(row)
    return best


def _frontier(rows: Sequence[Row], field: str, x: alt.X, y: alt.Y, theme: Theme) -> list[alt.Chart]:
    best = frontier(rows, field)
    line = source(best).mark_line(strokeDash=[5, 4], color=theme.control, strokeWidth=1.3, interpolate="step-after")
    return [line.encode(x=x, y=y)] if len(best) > 1 else []


def _names(
    rows: Sequence[Row], field: str, across: _Scale, up: _Scale, x: alt.X, y: alt.Y, theme: Theme
) -> list[alt.Chart]:
    """A name beside every point; a thin line leads to one that stands farther off."""
    points = [(across.place(row[field]), HEIGHT - up.place(row["loss"])) for row in rows]
    labels = short_names([row["normalizer"] for row in rows])
    texts = list(labels.values())
    taken = [*_steps(frontier(rows, field), field, across, up), *_bar_boxes(rows, points, up)]
    names = place_names(points, texts, (WIDTH, HEIGHT), taken)
    layers = []
    for row, (left, top), name in zip(rows, points, names, strict=True):
        place = {field: across.value(left + name.dx), "loss": up.value(HEIGHT - top - name.dy)}
        if name.far:
            lead = source([place | {"x2": row[field], "y2": row["loss"]}])
            rule = lead.mark_rule(color=theme.soft, strokeWidth=0.7)
            layers.append(rule.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
        words = source([place | {"normalizer": name_of(row["normalizer"]), "label": labels[row["normalizer"]]}])
        text = words.mark_text(align=name.side, fontSize=10, color=theme.ink)
        layers.append(text.encode(x=x, y=y, text="label:N", tooltip=[tip("normalizer", "normalizer", "N")]))
    return layers


def _steps(best: Sequence[Row], field: str, across: _Scale, up: _Scale) -> list[Box]:
    """Boxes along the frontier, which names avoid."""
    corners = [(across.place(row[field]), HEIGHT - up.place(row["loss"])) for row in best]
    boxes: list[Box] = []
    for (left, top), (right, bottom) in pairwise(corners):
        boxes += [(left, top - 2, right, top + 2), (right - 2, top, right + 2, bottom)]
    return boxes


def _bar_boxes(rows: Sequence[Row], points: Sequence[Point], up: _Scale) -> list[Box]:
    """Boxes along the intervals of the losses."""
    return [
        (left - 2, HEIGHT - up.place(row["paired_high"]), left + 2, HEIGHT - up.place(row["paired_low"]))
        for row, (left, _) in zip(rows, points, strict=True)
        if row["paired_low"] is not None and row["paired_high"] is not None
    ]
