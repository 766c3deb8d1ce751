"""A search as charts and page: the scan as a map of layers and normalizers, the plans, and pass keys over the depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE
from .._shared.panels import HEIGHT, WIDTH, Look, Row, numbers, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, lines, panel, source, unchecked
from .._shared.terminal import plain
from .._shared.theme import THEMES, Theme, ThemeName
from .._study_page import study_page
from .table import GAINS, MIXED, kind_of, lift_question, lift_tables

if TYPE_CHECKING:
    from ...studies import Lift

_ROW, _MAP = 30, WIDTH - 40  # pixels per normalizer in the map, and for all layers
_KEYS = (
    ("active", "active keys per query"),
    ("effective_tokens", "effective tokens"),
)  # the first if zeros are the goal
_WRITTEN = 8  # groups of layers: with more there is no room for numbers in the cells


@unchecked
def scan_chart(result: Lift, theme: ThemeName = "light") -> Spec:
    """Two maps of groups of layers by normalizers: what each costs alone, and what it gains."""
    rows = rows_of(result.scan)
    colours, goal = THEMES[theme], _goal(result)
    gain, unit = ("gain", 1.0) if goal == "retrieval" else ("zeros", 100.0)
    titles = ("rise of the loss (%)", GAINS["retrieval"] if goal == "retrieval" else f"{GAINS['sparse']} (%)")
    written = "+.2f" if goal == "retrieval" else ".0f"
    panels = [
        _map(rows, "harm", 100.0, titles[0], (colours.selected, colours.claim), colours, "+.2f"),
        _map(rows, gain, unit, titles[1], (colours.claim, colours.selected), colours, written),
    ]
    question = "What does each normalizer do in each layer alone?"
    return finished(panels, question, _about(result), theme, independent=["color", "x", "y"])


def _map(
    rows: Sequence[Row], field: str, unit: float, title: str, hues: tuple[str, str], theme: Theme, written: str
) -> Spec | None:
    present = [row | {"value": unit * row[field]} for row in rows if row[field] is not None]
    if not present:
        return None
    groups, names = (list(dict.fromkeys(row[key] for row in present)) for key in ("layers", "normalizer"))
    values = numbers(present, "value")
    # White is 0, orange is worse than before, blue is better.
    reach = max(abs(value) for value in values) or 1.0
    signed = min(values) < 0
    domain = [-reach, 0.0, reach] if signed else [0.0, reach]
    colours = [hues[0], theme.background, hues[1]] if signed else [theme.background, hues[1]]
    scale = alt.Scale(domain=domain, range=colours, interpolate="rgb", clamp=True)
    x = alt.X("layers:N", title="layers", sort=groups, axis=alt.Axis(labelOverlap="greedy"))
    y = alt.Y("normalizer:N", title=None, sort=names, axis=alt.Axis(labelLimit=150))
    colour = alt.Color("value:Q", scale=scale, legend=None)
    tips = [tip("normalizer", "normalizer", "N"), tip("layers", "layers", "N"), tip("value", title)]
    cells = [
        source(present).mark_rect(stroke=theme.line, strokeWidth=1, opacity=0.65).encode(x, y, colour, tooltip=tips)
    ]
    if len(groups) <= _WRITTEN:
        text = source(present).mark_text(fontSize=9, color=theme.ink)
        cells.append(text.encode(x, y, text=alt.Text("value:Q", format=written)))
    return panel(cells, title, _MAP, max(60, _ROW * len(names)))


@unchecked
def plans_chart(result: Lift, theme: ThemeName = "light") -> Spec:
    """Every plan tried: its gain, and the keys it keeps, against its cost."""
    goal = _goal(result)
    unit = 1.0 if goal == "retrieval" else 100.0
    rows = [
        row
        | {"gained": unit * row["gain"], "cost": 100 * row["rise"], "kind": kind_of(row["plan"])}
        | {"low": _percent(row["rise_low"]), "high": _percent(row["rise_high"])}
        for row in rows_of(result.plans)
        if row["gain"] is not None and row["rise"] is not None
    ]
    limit = 100 * float(part_of(result.manifest, "settings").get("max_loss") or 0.0)
    title = GAINS.get(goal, "gain") + ("" if goal == "retrieval" else " (%)")
    panels = [
        _plans(rows, "gained", title, limit, THEMES[theme]),
        _plans(rows, *_KEYS[goal == "retrieval"], limit, THEMES[theme]),
    ]
    about = ["open: fitted only; filled: tuned too; ring: judged; dashed: the rise that is allowed"]
    return finished(panels if rows else [], "What do the plans gain, and what do they cost?", about, theme)


def _plans(rows: Sequence[Row], field: str, title: str, limit: float, theme: Theme) -> Spec:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    hues = (theme.selected, theme.third, theme.fourth, theme.claim, theme.control, theme.alarm)
    colours = [theme.ink if kind == MIXED else hues[place % len(hues)] for place, kind in enumerate(kinds)]
    beside = alt.Scale(zero=False, nice=True, padding=10)
    x = alt.X(f"{field}:Q", title=title, scale=beside, axis=alt.Axis(tickCount=6))
    y = alt.Y("cost:Q", title="rise of the loss (%)", scale=beside, axis=alt.Axis(tickCount=6))
    legend = alt.Legend(symbolType="circle")
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=kinds, range=colours), legend=legend)
    tips = [tip("plan", "plan", "N"), tip("steps", "steps of tuning"), tip(field, title), tip("cost", "rise (%)")]
    tips += [tip("low", "from"), tip("high", "to")]
    tuned, bare = ([row for row in rows if bool(row["steps"]) is done] for done in (True, False))
    rings = source([row for row in rows if row["chosen"]])
    bars = source([row for row in tuned if row["low"] is not None]).mark_rule(strokeWidth=1.5, opacity=0.45)
    layers = [
        source([{"cost": limit}]).mark_rule(color=theme.soft, strokeDash=[5, 3]).encode(y=y),
        bars.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=colour),
        source(bare).mark_point(size=44, strokeWidth=1.4, opacity=0.9).encode(x, y, colour, tooltip=tips),
        source(tuned).mark_point(filled=True, size=60, opacity=1).encode(x, y, colour, tooltip=tips),
        rings.mark_point(size=230, strokeWidth=2, color=theme.ink, opacity=1).encode(x, y, tooltip=tips),
    ]
    return panel(layers, f"loss against {title.removesuffix(' (%)')}", WIDTH, HEIGHT)


@unchecked
def keys_chart(result: Lift, theme: ThemeName = "light") -> Spec:
    """Pass keys found over the depth, a panel per length."""
    colours = THEMES[theme]
    names = list(dict.fromkeys(result.keys["contender"].to_list()))
    hues = dict(zip(names, (colours.ink, colours.control, colours.selected)[-len(names) :], strict=False))
    looks = {name: Look(name, hues[name], (5, 3) if name == BASELINE else (1, 0)) for name in names}
    rows = [row | {"shown": row["contender"]} for row in rows_of(result.keys)]
    panels = [
        _keys([row for row in rows if row["length"] == length], length, looks)
        for length in dict.fromkeys(row["length"] for row in rows)
    ]
    return finished(panels, "Which pass keys are found?", _about(result), theme)


def _keys(rows: Sequence[Row], length: int, looks: dict[str, Look]) -> Spec:
    x = alt.X("depth:Q", title="depth (0 first, 1 last)", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5))
    y = share_axis("right", "pass keys found")
    if not any(row["right"] for row in rows):  # then log-probabilities say more
        y = alt.Y("log_probability:Q", title="log-probability", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    style: dict[str, Any] = series_style(looks, {row["shown"] for row in rows})
    tips = [tip("shown", "contender", "N"), tip("depth"), tip("right"), tip("log_probability"), tip("prompts")]
    return panel(lines(rows, x, y, style, tips), f"{length:,} tokens")


def lift_charts(result: Lift, theme: ThemeName) -> dict[str, Spec]:
    keys = {"keys": keys_chart(result, theme)} if result.keys.height else {}
    scan = {"scan": scan_chart(result, theme)} if result.scan.height else {}  # empty if everything was learned
    return scan | {"plans": plans_chart(result, theme)} | keys


def _goal(result: Lift) -> str:
    return str(part_of(result.manifest, "settings").get("goal") or "sparse")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _about(result: Lift) -> list[str]:
    return [plain(f"{model_name(result.manifest)} on {text_name(result.manifest)}")]


def lift_page(result: Lift) -> str:
    windows = part_of(result.manifest, "windows")
    counts = ", ".join(f"{len(windows.get(name) or ())} {name}" for name in ("training", "validation", "test"))
    length, longer = part_of(result.manifest, "settings").get("length"), (result.manifest.get("loss_lengths") or ())[1:]
    counts += "".join(f", and of {n:,} tokens to judge the loss once more" for n in longer)
    about = [f"on {text_name(result.manifest)}: windows of {length} tokens, {counts}", f"plan: {result.plan}"]
    charts = {theme: lift_charts(result, theme) for theme in THEMES}
    return study_page(result, lift_question(result), about, result.findings, lift_tables(result), charts)
