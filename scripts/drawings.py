"""drawings: the pictures that need no run: small charts of formulas, and diagrams, as SVG in the light colours.

`scripts/docs_site` recolours them, like all SVG, for readers of the dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

INK, SOFT, LINE, RAISED, PAGE = "#1c2430", "#5a6675", "#dde2e8", "#f4f6f8", "#ffffff"
BLUE, GREEN, ORANGE, PINK, GREY = "#0072b2", "#008a64", "#d55e00", "#b0548a", "#79818c"
FONT = "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
Drawn = Iterable[str]


def svg(width: int, height: int, *parts: str | Drawn) -> str:
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="{FONT}">', box(0, 0, width, height, PAGE, PAGE), *lines, "</svg>"]) + "\n"


def box(x: float, y: float, width: float, height: float, fill: str = RAISED, stroke: str = LINE) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="{stroke}"/>'


def words(
    x: float, y: float, text: str, *, size: int = 13, fill: str = INK, at: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" text-anchor="{at}"{weight}>{escape(text)}</text>'
    )


def card(x: float, y: float, width: float, height: float, title: str, *lines: str, stroke: str = LINE) -> Drawn:
    """A box with a title and lines of less weight, centred in it."""
    first = y + height / 2 - 8.5 * len(lines) + 5
    yield box(x, y, width, height, stroke=stroke)
    yield words(x + width / 2, first, title, at="middle", bold=True)
    for number, line in enumerate(lines, 1):
        yield words(x + width / 2, first + 17 * number, line, size=12, fill=SOFT, at="middle")


def arrow(x1: float, y1: float, x2: float, y2: float, stroke: str = SOFT) -> Drawn:
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    back = x2 - 8 * dx, y2 - 8 * dy
    yield f'<line x1="{x1:g}" y1="{y1:g}" x2="{back[0]:.1f}" y2="{back[1]:.1f}" stroke="{stroke}" stroke-width="1.5"/>'
    sides = ((back[0] - 4 * dy, back[1] + 4 * dx), (back[0] + 4 * dy, back[1] - 4 * dx))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), *sides))
    yield f'<polygon points="{points}" fill="{stroke}"/>'


# -- Diagrams ----------------------------------------------------------------------------------------------------------


def separability() -> str:
    """Three selected tokens, their sum, and the ball around it up to the nearest other token; true to scale."""
    selected = [(3.2, 2.0), (2.4, -0.8), (-1.0, 1.4)]
    others = [(1.0, 0.2), (0.5, -0.8), (-0.9, 0.3), (0.3, 0.6), (-0.7, -0.7), (-0.1, -1.3), (0.1, 1.0)]
    s = tuple(sum(point[axis] for point in selected) for axis in (0, 1))
    near = min(others, key=lambda point: math.dist(point, s))
    radius, unit = math.dist(near, s), 48.0

    def at(point: Sequence[float]) -> tuple[float, float]:
        return 70 + unit * (point[0] + 1), 352 - unit * point[1]

    def dot(x: float, y: float, fill: str, stroke: str) -> str:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{fill}" stroke="{stroke}" stroke-width="2"/>'

    def cross(x: float, y: float, size: int, stroke: str) -> str:
        path = f"M{x - size:.1f} {y:.1f}h{2 * size}M{x:.1f} {y - size:.1f}v{2 * size}"
        return f'<path d="{path}" stroke="{stroke}" stroke-width="2"/>'

    (cx, cy), (nx, ny), (ox, oy) = at(s), at(near), at((0, 0))
    look = f'fill="{BLUE}" fill-opacity="0.08" stroke="{BLUE}"'
    ball = f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{radius * unit:.1f}" {look}/>'
    reach = f'<line x1="{cx:.1f}" y1="{cy:.1f}" x2="{nx:.1f}" y2="{ny:.1f}" stroke="{SOFT}" stroke-dasharray="5 4"/>'
    marks = [dot(*at(point), PAGE, GREY) for point in others]
    for number, point in enumerate(selected, 1):
        (x, y), inside = at(point), math.dist(point, s) <= radius
        marks.append(dot(x, y, BLUE if inside else PAGE, BLUE))
        marks.append(words(x - 4, y - 14, f"{number}: {'inside' if inside else 'outside'}", fill=BLUE))
    named = [
        cross(cx, cy, 8, INK),
        words(cx - 4, cy - 36, "s, the weighted sum"),
        words(cx - 4, cy - 18, "of the selected tokens"),
        words((cx + nx) / 2 - 18, (cy + ny) / 2 - 4, "r", fill=SOFT),
        words(nx + 12, ny + 14, "nearest other token", fill=SOFT),
        cross(ox, oy, 4, SOFT),
        words(ox + 8, oy + 16, "0", size=12, fill=SOFT),
    ]
    legend = [
        *(dot(30, 478, BLUE, BLUE), words(44, 483, "selected, inside the ball", size=14)),
        *(dot(236, 478, PAGE, BLUE), words(250, 483, "selected, outside", size=14)),
        *(dot(396, 478, PAGE, GREY), words(410, 483, "not selected", size=14)),
        words(22, 516, "separability = 2/3", bold=True, size=15),
        words(190, 516, "s shows that 1 and 2 were chosen; 3 is farther away", fill=SOFT),
        words(190, 534, "than a token that was not.", fill=SOFT),
    ]
    return svg(570, 548, ball, reach, marks, named, legend)


ROOMS = (
    (("studies", "work, rules and result of each"), ("lab", "small networks that test claims")),
    (("training", "the monitor of a training run, its alerts"),),
    (("runs", "folders, parts, resuming, shards, Ray, cost"),),
    (("results", "tables with units, findings, estimates, saving"),),
    (("views", "terminal, page, notebook, figures: from one View"),),
    (("words", "columns, files, numbers as they are written"),),
    (("models", "loading, texts, windows, tap, swap, export"),),
    (("bounds", "what is proved"), ("measures", "what is measured")),
    (("attention", "exact attention with any normalizer, block by block"),),
    (("normalizers", "maps from logits to weights, and their specs"),),
    (("kernels", "compiled loops, with the plain reference beside them"),),
    (("errors", "AbbeError: one line that says what, where, how to fix it"),),
)


def house() -> str:
    """The rooms of src/abbe as storeys: a room imports only from storeys below it."""
    left, width, height, top = 30, 600, 38, 96
    roof = f"{left - 14},{top - 6} {left + width / 2},14 {left + width + 14},{top - 6}"
    parts = [f'<polygon points="{roof}" fill="{RAISED}" stroke="{LINE}"/>']
    parts += [
        words(left + width / 2, 62, "cli", at="middle", bold=True),
        words(left + width / 2, 80, "the commands, from the studies' signatures", size=12, fill=SOFT, at="middle"),
    ]
    for storey, rooms in enumerate(ROOMS):
        each = (width - 8 * (len(rooms) - 1)) / len(rooms)
        for number, (name, what) in enumerate(rooms):
            x, y = left + number * (each + 8), top + storey * (height + 6)
            parts += [box(x, y, each, height), words(x + 14, y + 24, name, bold=True)]
            parts.append(words(x + (96 if len(rooms) > 1 else 130), y + 24, what, size=12, fill=SOFT))
    bottom = top + len(ROOMS) * (height + 6) - 6
    parts += arrow(left + width + 34, top + 10, left + width + 34, bottom - 10)
    middle = (top + bottom) / 2
    label = words(0, 0, "imports go down, never up", size=12, fill=SOFT, at="middle")
    parts.append(f'<g transform="translate({left + width + 54:g} {middle:g}) rotate(90)">{label}</g>')
    return svg(704, bottom + 18, parts)


def export() -> str:
    return svg(
        760,
        226,
        card(20, 78, 150, 70, "model and plan", "layers.0-9=...", stroke=BLUE),
        arrow(170, 100, 214, 62),
        arrow(170, 126, 214, 164),
        card(216, 24, 226, 70, "temperatures of softmax", "folded into the query weights", stroke=GREEN),
        card(216, 132, 226, 70, "other normalizers", "carried beside the weights", stroke=ORANGE),
        arrow(442, 59, 482, 59),
        arrow(442, 167, 482, 167),
        card(484, 24, 252, 70, "a plain checkpoint", "transformers, vLLM, llama.cpp;", "checked without abbe"),
        card(484, 132, 252, 70, "a folder with its plan", "loads after `import abbe`;", "checked in a fresh process"),
    )


def shards() -> str:
    colours = {"shard 1/3": BLUE, "shard 2/3": GREEN, "shard 3/3": ORANGE}
    parts = list(card(20, 84, 120, 62, "a study", "report, capacity, ..."))
    parts += arrow(140, 115, 178, 115)
    for number in range(9):
        x, y = 184 + 46 * (number % 3), 50 + 46 * (number // 3)
        colour = list(colours.values())[number % 3]
        parts += [box(x, y, 38, 38, PAGE, colour), words(x + 19, y + 24, str(number + 1), at="middle", fill=colour)]
    parts.append(words(251, 210, "parts: named, checksummed files", size=12, fill=SOFT, at="middle"))
    for number, (name, colour) in enumerate(colours.items()):
        parts.append(words(203 + 46 * number, 38, name.removeprefix("shard "), size=12, fill=colour, at="middle"))
    parts += [*arrow(326, 115, 364, 115), *card(366, 84, 150, 62, "abbe merge", "makes what is missing")]
    parts += [
        *arrow(516, 115, 554, 115),
        *card(556, 76, 184, 78, "table and page", "bit for bit those", "of a single process", stroke=BLUE),
    ]
    return svg(760, 230, parts)


# -- Charts of formulas ------------------------------------------------------------------------------------------------


def styled(chart: Any, title: str, subtitle: str) -> Any:
    import altair as alt

    shown = chart.properties(
        title=alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=SOFT, color=INK)
    )
    axis = {"labelColor": INK, "titleColor": INK, "domainColor": SOFT, "tickColor": SOFT, "gridColor": LINE}
    return shown.configure(
        background=PAGE,
        font=FONT,
        view={"stroke": None},
        axis=axis | {"titleFontWeight": "normal"},
        header={"labelColor": INK, "labelFontSize": 12},
        legend={"labelColor": INK, "titleColor": INK, "orient": "bottom", "columnPadding": 30},
    )


def normalizers() -> Any:
    """One row of logits under six normalizers."""
    import altair as alt
    import torch

    import abbe

    logits = torch.tensor([3.0, 2.6, 2.3, 1.4, 1.1, 0.9, 0.2, 0.0, -0.3, -0.8, -1.2, -2.0])
    specs = ("softmax", "softmax:temperature=0.5", "entmax:alpha=1.5", "sparsemax", "topk:k=4", "softmax1")
    rows = [
        {"normalizer": spec, "key": key, "weight": weight, "zero": weight == 0}
        for spec in specs
        for key, weight in enumerate(abbe.normalizer(spec)(logits).tolist(), 1)
    ]
    x = alt.X("key:O", title="keys, by falling logit").axis(labels=False, ticks=False, grid=False)
    y = alt.Y("weight:Q", title="weight").axis(tickCount=4)
    base = alt.Chart(alt.InlineData(values=rows))
    bars = base.transform_filter("!datum.zero").mark_bar(color=BLUE).encode(x, y)
    zeros = base.transform_filter("datum.zero").mark_text(text="×", color=ORANGE, baseline="bottom").encode(x, y)
    panels = (
        alt.layer(bars, zeros)
        .properties(width=180, height=110)
        .facet(alt.Facet("normalizer:N", title=None, sort=specs), columns=3)
    )
    return styled(
        panels, "The same logits under six normalizers", "one query, 12 keys; crosses are weights of exactly 0"
    )


def entmax() -> Any:
    """Two keys: what a lead of the first is worth."""
    import altair as alt
    import torch

    from abbe.entmax import entmax_bisect

    leads = torch.linspace(-4, 4, 161, dtype=torch.float64)
    names = {1.0: "softmax (alpha = 1)", 1.25: "alpha = 1.25", 1.5: "alpha = 1.5", 2.0: "sparsemax (alpha = 2)"}
    pairs = torch.stack([leads, torch.zeros_like(leads)], -1)
    rows = [
        {"lead": lead, "weight": round(weight, 6), "map": name}
        for alpha, name in names.items()
        for lead, weight in zip(leads.tolist(), entmax_bisect(pairs, alpha=alpha)[:, 0].tolist(), strict=True)
    ]
    colour = alt.Color("map:N", title=None, sort=list(names.values())).scale(range=[GREY, GREEN, BLUE, ORANGE])
    x = alt.X("lead:Q", title="lead of the first logit over the second").axis(grid=False, tickCount=8)
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2.2)
        .encode(x, alt.Y("weight:Q", title="weight of the first key"), colour)
    )
    return styled(
        lines.properties(width=560, height=220), "Entmax reaches exactly 0 and 1, softmax never does", "two keys"
    )


def swap() -> Any:
    """The heads of the embedded model under the mapping of docs/how-to/swapping.md."""
    import altair as alt

    heads = [
        {
            "layer": layer,
            "head": head,
            "normalizer": "topk:k=32" if layer == 3 else "sparsemax" if head in (0, 4) else "softmax",
        }
        for layer in range(6)
        for head in range(8)
    ]
    colour = alt.Color("normalizer:N", title=None, sort=["topk:k=32", "sparsemax", "softmax"]).scale(
        range=[BLUE, ORANGE, LINE]
    )
    tiles = (
        alt.Chart(alt.InlineData(values=heads))
        .mark_rect(stroke=PAGE, strokeWidth=3, cornerRadius=3)
        .encode(
            alt.X("head:O").axis(labelAngle=0, ticks=False, domain=False),
            alt.Y("layer:O").axis(ticks=False, domain=False),
            colour,
        )
    )
    return styled(
        tiles.properties(width=420, height=190),
        "Which normalizer each head gets",
        '{"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax", "*": "softmax"}',
    )


def equal_selectivity() -> Any:
    """The Lipschitz constant against L, at the temperature that gives the top key this weight at a unit margin."""
    import altair as alt
    import torch

    from abbe.bounds import sensitivity_at_equal_selectivity

    names = {"softmax": "softmax, ssmax", "entmax15": "entmax 1.5", "sparsemax": "sparsemax"}
    lengths = [2**k for k in range(2, 21)]
    keys = torch.tensor(lengths, dtype=torch.float64)
    rows = [
        {"keys": length, "sensitivity": value, "normalizer": shown}
        for spec, shown in names.items()
        for length, value in zip(lengths, sensitivity_at_equal_selectivity(spec, keys, 0.1).tolist(), strict=True)
    ]
    colour = alt.Color("normalizer:N", legend=None).scale(domain=list(names.values()), range=[ORANGE, BLUE, GREEN])
    x = alt.X("keys:Q", title="keys in the row").scale(type="log", base=2, domain=[lengths[0], lengths[-1]])
    x = x.axis(values=lengths[::3], format=",d", grid=False)
    y = alt.Y("sensitivity:Q", title="Lipschitz constant at equal selectivity").scale(domain=[0, 9])
    lines = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2.5).encode(x, y, colour)
    ends = alt.InlineData(values=[row for row in rows if row["keys"] == lengths[-1]])
    labels = alt.Chart(ends).mark_text(align="left", dx=6, fontSize=13).encode(x, y, colour, text="normalizer:N")
    layered = alt.layer(lines, labels).properties(
        width=520, height=320, padding={"left": 5, "right": 40, "top": 5, "bottom": 5}
    )
    return styled(
        layered,
        "Softmax pays for selectivity with ln L, entmax does not",
        "temperature set so that a unit margin gives the top key a weight of 0.9",
    )


DRAWINGS = {
    name: draw
    for name, draw in globals().items()
    if name in ("separability", "house", "export", "shards", "normalizers", "entmax", "swap", "equal_selectivity")
}


def save(name: str, picture: Path) -> None:
    drawn = DRAWINGS[name]()
    if isinstance(drawn, str):
        picture.write_text(drawn, encoding="utf-8")
    else:
        drawn.save(picture)
