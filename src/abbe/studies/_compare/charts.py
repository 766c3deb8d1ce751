"""What every normalizer costs against what it gains, and the needle test by length and depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from ...views import charts as kit
from ...views.charts import Box, Look, Row, Spec
from ...views.theme import THEMES, Theme, ThemeName
from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE, CALIBRATED, JUMPS
from .result import Comparison, name_of

_LONGEST = 27  # letters that have room beside a point
_CHANCE = "chance"
_KINDS = {"key-value": "list of keys and values", "needle": "needle in the text"}


@kit.unchecked
def charts_of(comparison: Comparison, theme: ThemeName) -> dict[str, Spec]:
    """Cost and gain; right answers, if there are prompts."""
    looks = looks_of(comparison.table["normalizer"].to_list(), THEMES[theme])
    manifest = comparison.manifest
    windows, length = len(manifest.get("windows", ())), part_of(manifest, "settings").get("length")
    about = [f"{model_name(manifest)} · {windows} windows of {length} tokens · {text_name(manifest)}"]
    better = "down and left are better; dashed: those that no other beats in both"
    bars = "bars: intervals; of the loss, that of the difference from the baseline"
    question = "What does each normalizer cost, and what does it gain?"
    charts = {"costs": kit.finished(_pareto(comparison, looks, THEMES[theme]), question, [*about, better, bars], theme)}
    if comparison.needle.height:
        question = "Does the model find the one right word in its prompt?"
        charts["needles"] = kit.finished(_needle(comparison, looks, THEMES[theme]), question, about, theme)
    return charts


def looks_of(normalizers: Sequence[str], theme: Theme) -> dict[str, Look]:
    """One look per normalizer in all charts; a calibrated one is dashed, in the colour of the plain one."""
    hues = (theme.selected, theme.third, theme.fourth, theme.claim, theme.ramp[0], theme.bad, theme.control)
    labels = _short_names(normalizers)
    plain = [name for name in normalizers if name != BASELINE and CALIBRATED not in name]
    looks = {BASELINE: Look(BASELINE, theme.proved, width=2.6)}
    for name in normalizers:
        base = name.removesuffix(CALIBRATED)
        hue = hues[plain.index(base) % len(hues)] if base in plain else theme.soft
        looks.setdefault(name, Look(labels[name], hue, (6, 3) if base != name else (1, 0)))
    return looks


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Names in charts: long ones keep both ends, and a number if need be; tooltips and tables show them in full."""
    shortened: dict[str, str] = {}
    for name in names:
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 14]}…{name[-13:]}"
        same = sum(other == short or other.startswith(f"{short} (") for other in shortened.values())
        shortened[name] = f"{short} ({same + 1})" if same else short
    return shortened


# -- Cost and gain ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scale:
    """Converts a number to its place in a panel, in pixels, and back."""

    low: float
    high: float
    size: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], size: float, room: float, log: bool = False) -> _Scale:
        """A scale with room at both ends, as a share of the range of the values."""
        low, high = min(values), max(values)
        if log:
            factor = (high / low) ** room if high > low else 2.0
            return cls(low / factor, high * factor, size, True)
        aside = room * (high - low) if high > low else abs(high) * 0.1 or 1.0
        return cls(low - aside, high + aside, size)

    def place(self, value: float) -> float:
        return self.size * (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def value(self, place: float) -> float:
        at = self._at(self.low) + place / self.size * (self._at(self.high) - self._at(self.low))
        return math.exp(at) if self.log else at

    def _at(self, value: float) -> float:
        return math.log(value) if self.log else value

    @property
    def domain(self) -> alt.Scale:
        kind = {"type": "log"} if self.log else {"zero": False}
        return alt.Scale(domain=[self.low, self.high], nice=False, **kind)


def _pareto(comparison: Comparison, looks: Mapping[str, Look], theme: Theme) -> list[Spec | None]:
    """Two panels, a point per normalizer with both intervals; a line joins those that none beats."""
    rows = kit.rows_of(comparison.table)
    baseline = rows[0]["loss"]
    for row in rows:
        name, ends = row["normalizer"], (row["loss_change_low"], row["loss_change_high"])
        # The interval of the paired difference, around the baseline's loss: it leaves out what windows have in common.
        known = baseline is not None and name != BASELINE and None not in ends
        row["paired_low"], row["paired_high"] = (baseline + end if known else None for end in ends)
        counted = "only between its jumps" if row[JUMPS] else "everywhere"
        row |= {"shown": looks[name].label, "full": name_of(name), "counted": counted}
    colours = [look.colour for look in looks.values()]
    scale = alt.Scale(domain=[look.label for look in looks.values()], range=colours)
    colour = alt.Color("shown:N", title=None, scale=scale, legend=None)
    return [
        _costs(rows, "active", "active tokens", colour, theme),
        _costs(rows, "sensitivity_ratio", "sensitivity at equal selectivity, over baseline", colour, theme),
    ]


def _costs(rows: Sequence[Row], field: str, title: str, colour: alt.Color, theme: Theme) -> Spec | None:
    present = [row for row in rows if row["loss"] is not None and (row[field] or 0) > 0]
    if not present:
        return None
    low, high = f"{field}_low", f"{field}_high"
    across = _Scale.around([x for x in kit.numbers(present, field, low, high) if x > 0], kit.WIDTH, 0.14, log=True)
    up = _Scale.around(kit.numbers(present, "loss", "paired_low", "paired_high"), kit.HEIGHT, 0.1)
    x = alt.X(f"{field}:Q", title=title, scale=across.domain, axis=alt.Axis(tickCount=4, format="~g"))
    y = alt.Y("loss:Q", title="loss (nats)", scale=up.domain, axis=alt.Axis(tickCount=6))
    change = (kit.tip("loss_change_low", "difference from the baseline, from"), kit.tip("loss_change_high", "to"))
    counted = [kit.tip("counted", "counted", "N")] if field == "sensitivity_ratio" else []
    tips = [kit.tip("full", "normalizer", "N"), kit.tip(field, title), *counted, kit.tip("loss"), *change]
    best, layers = frontier(present, field), []
    if len(best) > 1:
        dashed: dict[str, Any] = {"strokeDash": [5, 4], "strokeWidth": 1.3, "interpolate": "step-after"}
        layers.append(kit.source(best).mark_line(color=theme.control, **dashed).encode(x=x, y=y))
    across_to: dict[str, Any] = {"x": kit.renamed(x, low), "x2": f"{high}:Q", "y": y}
    up_to: dict[str, Any] = {"x": x, "y": kit.renamed(y, "paired_low"), "y2": "paired_high:Q"}
    for start, end, places in ((low, high, across_to), ("paired_low", "paired_high", up_to)):
        if bars := [row for row in present if row[end] is not None and (row[start] or 0) > 0]:
            layers.append(kit.source(bars).mark_rule(strokeWidth=1.6, opacity=0.7).encode(**places, color=colour))
    points = kit.source(present[::-1]).mark_point(filled=True, size=90, opacity=1)
    layers += [
        points.encode(x=x, y=y, color=colour, tooltip=tips),
        *_names(present, field, across, up, x, y, theme),
    ]
    return kit.panel(layers, f"loss against {title.partition(',')[0]}")


def frontier(rows: Sequence[Row], field: str) -> list[Row]:
    """The rows that no other beats in both `field` and loss (lower is better), in rising order."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[field], row["loss"])):
        if not best or row["loss"] < best[-1]["loss"]:
            best.append(row)
    return best


def _names(
    rows: Sequence[Row], field: str, across: _Scale, up: _Scale, x: alt.X, y: alt.Y, theme: Theme
) -> list[alt.Chart]:
    """A name beside every point, clear of frontier and intervals; a thin line leads to one that stands farther off."""

    def at(row: Row) -> tuple[float, float]:
        return across.place(row[field]), kit.HEIGHT - up.place(row["loss"])

    taken: list[Box] = []
    for (left, top), (right, bottom) in pairwise(map(at, frontier(rows, field))):
        taken += [(left, top - 2, right, top + 2), (right - 2, top, right + 2, bottom)]
    for row in rows:
        if row["paired_low"] is not None:
            top, bottom = (kit.HEIGHT - up.place(row[end]) for end in ("paired_high", "paired_low"))
            taken.append((at(row)[0] - 2, top, at(row)[0] + 2, bottom))
    points, layers = [at(row) for row in rows], []
    names = kit.place_names(points, [row["shown"] for row in rows], (kit.WIDTH, kit.HEIGHT), taken)
    for row, (left, top), name in zip(rows, points, names, strict=True):
        place = {field: across.value(left + name.dx), "loss": up.value(kit.HEIGHT - top - name.dy)}
        if name.far:
            ends = kit.source([place | {"x2": row[field], "y2": row["loss"]}])
            rule = ends.mark_rule(color=theme.soft, strokeWidth=0.7)
            layers.append(rule.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
        words = kit.source([place | {"normalizer": row["full"], "label": row["shown"]}])
        text = words.mark_text(align=name.side, fontSize=10, color=theme.ink)
        layers.append(text.encode(x=x, y=y, text="label:N", tooltip=[kit.tip("normalizer", "normalizer", "N")]))
    return layers


# -- Needles ----------------------------------------------------------------------------------------------------------


def _needle(comparison: Comparison, looks: Mapping[str, Look], theme: Theme) -> list[Spec | None]:
    """Two panels per kind of prompt: accuracy over the length and over the depth of the answer, beside chance."""
    panels = []
    for kind, words in _KINDS.items():
        for field, other in (("length", "depth"), ("depth", "length")):
            chosen = (pl.col("kind") == kind) & pl.col(field).is_not_null() & pl.col(other).is_null()
            rows = kit.rows_of(comparison.needle.filter(chosen))
            panels.append(_accuracies(rows, field, f"{words}, by {field}", looks, theme) if rows else None)
    return panels


def _accuracies(rows: Sequence[Row], field: str, title: str, looks: Mapping[str, Look], theme: Theme) -> Spec:
    all_looks = {**looks, _CHANCE: Look(_CHANCE, theme.control, (2, 3), 1.6)}
    style: dict[str, Any] = kit.series_style(all_looks, list(all_looks))
    x = kit.places_axis("length", "length of the prompt (tokens)", [row[field] for row in rows])
    if field == "depth":
        axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2~f")
        scale = alt.Scale(domain=[-0.08, 1.08], nice=False)
        x = alt.X("depth:Q", title="depth of the answer (0 first, 1 last)", scale=scale, axis=axis)
    y = kit.share_axis("accuracy", "right answers")
    drawn, order = [], list(looks)
    for row in rows:
        # Each series is shifted a little, so that intervals at one place do not overlap.
        aside = order.index(row["normalizer"]) - (len(order) - 1) / 2
        place = row[field] * 1.025**aside if field == "length" else row[field] + 0.012 * aside
        names = {"shown": looks[row["normalizer"]].label, "full": name_of(row["normalizer"])}
        drawn.append(row | {field: place, "place": row[field]} | names)
    by_place = {row[field]: row["chance"] for row in rows}  # the same for all normalizers
    chance = [{field: place, "accuracy": share, "shown": _CHANCE} for place, share in by_place.items()]
    named = {"place": field, "accuracy": None, "accuracy_low": "from", "accuracy_high": "to"}
    named |= {"gain": "gain over baseline", "chance": None, "prompts": None, "margin": "margin (logits)"}
    tips = [kit.tip("full", "normalizer", "N"), *(kit.tip(*each) for each in named.items())]
    bars = kit.source(drawn).mark_rule(strokeWidth=1.4, opacity=0.55)
    layers = [
        kit.source(chance).mark_line().encode(x=x, y=y, **style),
        bars.encode(x=x, y=kit.renamed(y, "accuracy_low"), y2="accuracy_high:Q", color=style["color"]),
        *kit.lines(drawn, x, y, style, tips),
    ]
    return kit.panel(layers, title)
