"""Draw where sparse attention wins, from the lines that `--part sparse` prints.

    make bench ARGS="--part sparse" > run.log
    python benchmarks/figure.py run.log docs/figures/sparse_attention.svg

Without arguments it draws the figure of docs/results/speed.md again, from `sparse_attention.jsonl` beside this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import altair as alt

from abbe.views.theme import LIGHT

HERE = Path(__file__).parent
MEASURED = HERE / "sparse_attention.jsonl"
FIGURE = HERE.parent / "docs/figures/sparse_attention.svg"
PASSES = {"forward": "forward", "forward+backward": "forward and backward"}


def points(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Density, length and ratio of every row of random logits, forward and with backward."""
    rows = []
    for line in lines:
        row = json.loads(line) if line.startswith("{") else {}
        length, comma, _ = str(row.get("shape", "")).partition(", spread ")
        if row.get("part") == "sparse" and comma:
            common = {"density": row["density"], "tokens": int(length), "normalizer": row["name"].partition(":")[0]}
            rows += [common | {"pass": shown, "ratio": row[key]} for key, shown in PASSES.items() if key in row]
    return rows


def chart(rows: list[dict[str, Any]]) -> alt.FacetChart:
    x = alt.X("density:Q", title="visible keys that have a weight, per cent").scale(
        type="log", domain=[0.05, 100], nice=False
    )
    x = x.axis(values=[0.1, 1, 10, 100], format="~g")
    y = alt.Y("ratio:Q", title="time / time of torch's softmax attention").scale(
        type="log", domain=[0.125, 4], nice=False
    )
    y = y.axis(values=[0.125, 0.25, 0.5, 1, 2, 4], format="~g")
    colour = alt.Color("tokens:O", title="tokens").scale(range=["#9ecae1", "#5596c2", "#2171b5", "#08306b"])
    shape = alt.Shape("normalizer:N", title="normalizer")
    base = alt.Chart(alt.InlineData(values=rows))
    dots = base.mark_point(size=45, filled=True, opacity=0.9).encode(x, y, colour, shape)
    rule = base.mark_rule(color=LIGHT.claim, strokeDash=[4, 3]).encode(y=alt.datum(1))
    panels = alt.layer(rule, dots).properties(width=300, height=260)
    faceted: alt.FacetChart = panels.facet(alt.Column("pass:N", title=None, sort=list(PASSES.values())))
    return faceted.properties(
        title=alt.TitleParams(
            "Below the line sparse attention takes less time than softmax",
            subtitle="4 heads of width 64, causal, float32, 2 threads of a CPU",
        )
    ).configure(**LIGHT.config())


def main() -> None:
    measured, figure = (Path(given) for given in (sys.argv[1:3] if len(sys.argv) > 2 else (MEASURED, FIGURE)))
    rows = points(measured.read_text(encoding="utf-8").splitlines())
    if not rows:
        sys.exit(f'{measured} holds no rows of `make bench ARGS="--part sparse"`')
    chart(rows).save(figure)


if __name__ == "__main__":
    main()
