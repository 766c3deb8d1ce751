"""A search as charts: the scan as a map of layers and normalizers, the plans, and pass keys over the depth."""

from __future__ import annotations

from collections.abc import Sequence

from ...views import charts as kit
from ...views.charts import Look, Plot, Row, Spec
from ...views.text import plain
from ...views.theme import THEMES, Theme, ThemeName
from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE
from .result import Lift

_GAINS = {"sparse": "weights of exactly 0", "loss": "fall of the loss", "retrieval": "log-probability of pass keys"}
_MIXED = "mixed"
_ROW, _MAP = 30, kit.WIDTH - 40  # pixels per normalizer in the map, and for all layers
_KEPT = ("active", "active keys per query"), ("effective_tokens", "effective tokens")  # the second for retrieval
_WRITTEN = 8  # groups of layers: with more there is no room for numbers in the cells


def _scan(result: Lift, goal: str, about: Sequence[str], theme: ThemeName) -> Spec:
    """Two maps of groups of layers by normalizers: what each costs alone, and what it gains."""
    rows = kit.rows_of(result.scan)
    colours = THEMES[theme]
    gain, unit = ("gain", 1.0) if goal == "retrieval" else ("zeros", 100.0)
    titles = ("rise of the loss (%)", _GAINS["retrieval"] if goal == "retrieval" else f"{_GAINS['sparse']} (%)")
    written = "+.2f" if goal == "retrieval" else ".0f"
    panels = [
        _map(rows, "harm", 100.0, titles[0], (colours.selected, colours.claim), colours, "+.2f"),
        _map(rows, gain, unit, titles[1], (colours.claim, colours.selected), colours, written),
    ]
    question = "What does each normalizer do in each layer alone?"
    return kit.finished(panels, question, about, theme, independent=["color", "x", "y"])


def _map(
    rows: Sequence[Row], field: str, unit: float, title: str, hues: tuple[str, str], theme: Theme, written: str
) -> Spec | None:
    present = [row | {"value": unit * row[field]} for row in rows if row[field] is not None]
    if not present:
        return None
    groups, names = (list(dict.fromkeys(row[key] for row in present)) for key in ("layers", "normalizer"))
    values = kit.numbers(present, "value")
    # White is 0, orange is worse than before, blue is better.
    reach = max(abs(value) for value in values) or 1.0
    signed = min(values) < 0
    colours = {-reach: hues[0], 0.0: theme.background, reach: hues[1]}
    scale = {"domain": list(colours)[not signed :], "range": list(colours.values())[not signed :]}
    colour = {
        "field": "value",
        "type": "quantitative",
        "legend": None,
        "scale": scale | {"interpolate": "rgb", "clamp": True},
    }
    x = kit.names_axis("layers", "layers", groups, labelOverlap="greedy")
    y = kit.names_axis("normalizer", None, names, labelLimit=150)
    plot = Plot(x, y, {"normalizer": "", "layers": "", "value": title}, color=colour)
    plot.draw("rect", present, stroke=theme.line, strokeWidth=1, opacity=0.65)
    cells = [row | {"words": f"{row['value']:{written}}".replace("-", "−")} for row in present]
    plot.text(cells if len(groups) <= _WRITTEN else [], "words", fontSize=9, color=theme.ink)
    return plot.panel(title, _MAP, max(60, _ROW * len(names)))


def _plans(result: Lift, goal: str, theme: ThemeName) -> Spec:
    """Every plan tried: its gain, and the keys it keeps, against its cost."""
    unit = 1.0 if goal == "retrieval" else 100.0
    rows = []
    for row in kit.rows_of(result.plans):
        if row["gain"] is not None and row["rise"] is not None:
            specs = {part.partition("=")[2] for part in row["plan"].split("; ")}
            kind = specs.pop() if len(specs) == 1 else _MIXED
            low, high = (None if end is None else 100 * end for end in (row["rise_low"], row["rise_high"]))
            gained = {"gained": unit * row["gain"], "cost": 100 * row["rise"]}
            rows.append(row | gained | {"kind": kind, "low": low, "high": high})
    limit = 100 * float(part_of(result.manifest, "settings").get("max_loss") or 0.0)
    title = _GAINS.get(goal, "gain") + ("" if goal == "retrieval" else " (%)")
    panels = [
        _against(rows, "gained", title, limit, THEMES[theme]),
        _against(rows, *_KEPT[goal == "retrieval"], limit, THEMES[theme]),
    ]
    about = ["open: fitted only; filled: tuned too; ring: tested; dashed: the rise that is allowed"]
    return kit.finished(panels if rows else [], "What do the plans gain, and what do they cost?", about, theme)


def _against(rows: Sequence[Row], field: str, title: str, limit: float, theme: Theme) -> Spec:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    hues = (theme.selected, theme.third, theme.fourth, theme.claim, theme.control, theme.alarm)
    colours = {kind: theme.ink if kind == _MIXED else hues[place % len(hues)] for place, kind in enumerate(kinds)}
    tips = {"plan": "", "steps": "steps of tuning", field: title, "cost": "rise (%)", "low": "from", "high": "to"}
    tuned, bare = ([row for row in rows if bool(row["steps"]) is done] for done in (True, False))
    x = kit.near_axis(field, title, kit.numbers(rows, field))
    y = kit.near_axis(
        "cost", "rise of the loss (%)", [*kit.numbers(rows, "cost"), *kit.numbers(tuned, "low", "high"), limit]
    )
    plot = Plot(x, y, tips, color=kit.by_value("kind", colours, legend={"symbolType": "circle"}))
    plot.level([limit], color=theme.soft).ends(tuned, strokeWidth=1.5)
    plot.dots(bare, filled=False, size=44, strokeWidth=1.4, opacity=0.9).dots(tuned, size=60)
    plot.dots([row for row in rows if row["chosen"]], filled=False, size=230, strokeWidth=2, color=theme.ink)
    return plot.panel(f"loss against {title.removesuffix(' (%)')}")


def _keys(result: Lift, about: Sequence[str], theme: ThemeName) -> Spec:
    """Pass keys found over the depth, a panel per length."""
    colours = THEMES[theme]
    names = list(dict.fromkeys(result.keys["contender"].to_list()))
    hues = dict(zip(names, (colours.ink, colours.control, colours.selected)[-len(names) :], strict=False))
    looks = {name: Look(name, hues[name], (5, 3) if name == BASELINE else (1, 0)) for name in names}
    rows = [row | {"shown": row["contender"]} for row in kit.rows_of(result.keys)]
    panels = [
        _depths([row for row in rows if row["length"] == length], length, looks)
        for length in dict.fromkeys(row["length"] for row in rows)
    ]
    return kit.finished(panels, "Which pass keys are found?", about, theme)


def _depths(rows: Sequence[Row], length: int, looks: dict[str, Look]) -> Spec:
    y = kit.share_axis("right", "pass keys found")
    if not any(row["right"] for row in rows):  # then log-probabilities say more
        y = kit.near_axis("log_probability", "log-probability", kit.numbers(rows, "log_probability"))
    tips = {"shown": "contender"} | dict.fromkeys(("depth", "right", "log_probability", "prompts"), "")
    return Plot(kit.depth_axis("depth (0 first, 1 last)"), y, tips, looks).curve(rows).panel(f"{length:,} tokens")


def charts_of(result: Lift, theme: ThemeName) -> dict[str, Spec]:
    """The scan, unless everything was learned; the plans; pass keys, if they are the goal."""
    goal = str(part_of(result.manifest, "settings").get("goal") or "sparse")
    about = [plain(f"{model_name(result.manifest)} on {text_name(result.manifest)}")]
    scan = {"scan": _scan(result, goal, about, theme)} if result.scan.height else {}
    keys = {"keys": _keys(result, about, theme)} if result.keys.height else {}
    return scan | {"plans": _plans(result, goal, theme)} | keys
