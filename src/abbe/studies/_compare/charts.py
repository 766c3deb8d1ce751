"""What every normalizer costs against what it gains, and the needle test by length and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import polars as pl

from ...views import charts as kit
from ...views.charts import Look, Plot, Row, Spec
from ...views.theme import THEMES, Theme, ThemeName
from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE, CALIBRATED, JUMPS
from .result import Comparison, name_of

_LONGEST = 27  # letters that have room beside a point
_CHANCE = "chance"
_KINDS = {"key-value": "list of keys and values", "needle": "needle in the text"}


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
    return [
        _costs(rows, "active", "active tokens", {}, looks, theme),
        _costs(
            rows, "sensitivity_ratio", "sensitivity at equal selectivity, over baseline", {"counted": ""}, looks, theme
        ),
    ]


def _costs(
    rows: Sequence[Row], field: str, title: str, more: Mapping[str, str], looks: Mapping[str, Look], theme: Theme
) -> Spec | None:
    present = [row for row in rows if row["loss"] is not None and (row[field] or 0) > 0]
    if not present:
        return None
    low, high = f"{field}_low", f"{field}_high"
    values = [value for value in kit.numbers(present, field, low, high) if value > 0]
    room = (max(values) / min(values)) ** 0.14 if max(values) > min(values) else 2.0
    x = kit.axis(field, title, (min(values) / room, max(values) * room), log=True, clamp=True, tickCount=4, format="~g")
    y = kit.near_axis("loss", "loss (nats)", kit.numbers(present, "loss", "paired_low", "paired_high"))
    tips = {"full": "normalizer", field: title, **more, "loss": ""}
    tips |= {"loss_change_low": "difference from the baseline, from", "loss_change_high": "to"}
    colour = kit.by_value("shown", {look.label: look.colour for look in looks.values()}, legend=None)
    best = frontier(present, field)
    clear = [
        ((row[field], row["paired_low"]), (row[field], row["paired_high"])) for row in present if row["paired_low"]
    ]
    for one, other in pairwise(best):
        corner = other[field], one["loss"]
        clear += [((one[field], one["loss"]), corner), (corner, (other[field], other["loss"]))]
    plot = Plot(x, y, tips, color=colour)
    joined = best if len(best) > 1 else []
    plot.line(joined, color=theme.control, strokeDash=[5, 4], strokeWidth=1.3, interpolate="step-after")
    plot.ends(present, low, high, "x", strokeWidth=1.6, opacity=0.7)
    plot.ends(present, "paired_low", "paired_high", strokeWidth=1.6, opacity=0.7)
    plot.dots(present[::-1], size=90).names(present, "shown", theme, clear)
    return plot.panel(f"loss against {title.partition(',')[0]}")


def frontier(rows: Sequence[Row], field: str) -> list[Row]:
    """The rows that no other beats in both `field` and loss (lower is better), in rising order."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[field], row["loss"])):
        if not best or row["loss"] < best[-1]["loss"]:
            best.append(row)
    return best


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
    x = kit.places_axis("length", "length of the prompt (tokens)", [row[field] for row in rows])
    if field == "depth":
        x = kit.depth_axis("depth of the answer (0 first, 1 last)")
    drawn, order = [], list(looks)
    for row in rows:
        # Each series is shifted a little, so that intervals at one place do not overlap.
        aside = order.index(row["normalizer"]) - (len(order) - 1) / 2
        place = row[field] * 1.025**aside if field == "length" else row[field] + 0.012 * aside
        names = {"shown": looks[row["normalizer"]].label, "full": name_of(row["normalizer"])}
        drawn.append(row | {field: place, "place": row[field]} | names)
    by_place = {row[field]: row["chance"] for row in rows}  # the same for all normalizers
    chance = [{field: place, "accuracy": share, "shown": _CHANCE} for place, share in by_place.items()]
    tips = {"full": "normalizer", "place": field, "accuracy": "", "accuracy_low": "from", "accuracy_high": "to"}
    tips |= {"gain": "gain over baseline", "chance": "", "prompts": "", "margin": "margin (logits)"}
    all_looks = {**looks, _CHANCE: Look(_CHANCE, theme.control, (2, 3), 1.6)}
    plot = Plot(x, kit.share_axis("accuracy", "right answers"), tips, all_looks)
    plot.line(chance).ends(drawn, "accuracy_low", "accuracy_high", strokeWidth=1.4, opacity=0.55)
    return plot.curve(drawn).panel(title)
