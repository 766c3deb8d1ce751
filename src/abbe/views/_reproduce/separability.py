"""Figure 3: the share of the selected that a ball around their sum keeps apart from all others, head by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from ...words.paper import PAPER_SEPARABILITY
from .._shared.panels import INTERVAL_TIPS, Row, renamed, share_axis, tip
from .._shared.theme import Theme
from .panels import Panel, by_vectors, data, panel

if TYPE_CHECKING:
    from ...studies import Figure

BAND = "the paper, beyond N ≈ 16: .70 to .85"
SERIES = {"selected": "selected: one value per head", "random": "random sets of N"}


def separability_panels(figure: Figure, theme: Theme) -> list[Panel]:
    """Box plots over heads per kind of vectors, next to the random control."""
    means = by_vectors(figure.tables["mean"])
    return [_boxes(rows, means.get(name, []), name, theme) for name, rows in by_vectors(figure.tables["heads"]).items()]


def _boxes(heads: list[Row], means: list[Row], title: str, theme: Theme) -> alt.LayerChart:
    sizes = sorted({row["n"] for row in heads})
    labels = list(SERIES.values())
    rows = [
        {"layer": row["layer"], "head": row["head"], "n": row["n"], "shown": SERIES[series], "value": row[column]}
        for row in heads
        for series, column in (("selected", "value"), ("random", "control"))
    ]
    x = alt.X("n:O", title="selected tokens N", scale=alt.Scale(domain=sizes), axis=alt.Axis(labelSeparation=3))
    y = share_axis("value", "separability, N_s / N")
    offset = alt.XOffset("shown:N", scale=alt.Scale(domain=labels))
    colours = alt.Scale(domain=[*labels, BAND], range=[theme.selected, theme.control, theme.claim_pale])
    colour = alt.Color("shown:N", title=None, scale=colours, legend=alt.Legend(symbolType="square", symbolSize=120))
    strip = alt.Chart(data([{"low": PAPER_SEPARABILITY[0], "high": PAPER_SEPARABILITY[1], "shown": BAND}])).mark_rect()
    boxes = alt.Chart(data(rows)).mark_boxplot(
        extent=1.5, size=max(3, min(9, 80 // len(sizes))), rule={"color": theme.soft},
        median={"color": theme.background}, outliers={"size": 8, "opacity": 0.6},
    )  # fmt: skip
    layers = [
        strip.encode(y=renamed(y, "low"), y2="high:Q", color=colour),
        boxes.encode(x=x, y=y, xOffset=offset, color=colour),
    ]
    shown = [row | {"shown": SERIES[row["series"]]} for row in means if row["series"] in SERIES]
    if shown:
        tips = [tip("shown", "mean over heads", "N"), tip("n", "N"), tip("value", "separability"), *INTERVAL_TIPS]
        dots = alt.Chart(data(shown)).mark_point(
            shape="diamond", filled=True, size=26, fill=theme.background, stroke=theme.ink, strokeWidth=1, opacity=1
        )
        layers.append(dots.encode(x=x, y=y, xOffset=offset, tooltip=tips))
    return panel(layers, title)
