# %% [markdown]
# # Draw your own figure
#
# The page of a report answers common questions; the table behind it answers the others. Here: **do heads that spread
# their weight over many tokens select a set that can still be separated from the rest?** Every head is one point, with
# its 95 % intervals, beside what random sets of the same size would give.
#
# `python examples/own_figure.py --out FOLDER` takes 20 seconds on two cores.

# %%
import argparse
from pathlib import Path

import altair as alt
import polars as pl

import abbe

parser = argparse.ArgumentParser(description="Read a report in Python, and draw your own figure.")
parser.add_argument("--out", type=Path, default=Path("example-own-figure"), help="folder for the run and the picture")
parser.add_argument("--length", type=int, default=512, help="tokens per window")
parser.add_argument("--windows", type=int, default=4, help="windows, from which the intervals come")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own

# %% [markdown]
# ## Measure, or open what was measured
#
# A run is kept in its folder, and the same call resumes it: the second time it takes a second. `abbe.open` reads the
# folder of any command, so that a report made on a cluster is drawn on a laptop.

# %%
folder = options.out / "report"
abbe.report(lengths=[options.length // 4, options.length], windows=options.windows, folder=folder, progress=False)
report = abbe.open(folder)
print(report.answer.sentence)

# %% [markdown]
# ## From the tidy table to one row per head
#
# `report.table` has a row for every layer, head, length, set size and measure, with its interval, its limit and its
# control. What the figure needs is two measures at the longest length, side by side.

# %%
SIZE = 20  # tokens in the selected set
here = report.table.filter(pl.col("length") == options.length, pl.col("head").is_not_null())


def measured(measure: str, size: int | None = None) -> pl.DataFrame:
    """A row per head: the value, its interval and its control, under the name of the measure."""
    rows = here.filter(pl.col("measure") == measure, pl.col("n").eq_missing(pl.lit(size)))
    return rows.select(
        "layer", "head", *(pl.col(name).alias(f"{measure}_{name}") for name in ("value", "low", "high", "control"))
    )


heads = measured("effective_tokens").join(measured("separability", SIZE), on=["layer", "head"])
print(heads.select("layer", "head", "effective_tokens_value", "separability_value").head())

# %% [markdown]
# ## The answer in one number, then the figure

# %%
rank = heads.select(pl.corr("effective_tokens_value", "separability_value", method="spearman")).item()
chance = heads["separability_control"].mean()
narrow = heads.sort("effective_tokens_value").head(len(heads) // 2)["separability_value"].mean()
wide = heads.sort("effective_tokens_value").tail(len(heads) // 2)["separability_value"].mean()
answer = f"narrow half {narrow:.0%}, wide half {wide:.0%}, random sets {chance:.0%} (rank correlation {rank:+.2f})"
print(f"separability of the top {SIZE} tokens: {answer}")

# %%
x = (
    alt.X("effective_tokens_value:Q", title="effective tokens of a query")
    .scale(type="log", nice=False, padding=10)
    .axis(grid=False)
)
y = alt.Y("separability_value:Q", title=f"top {SIZE} tokens that are separable").scale(domain=[0, 1]).axis(format="%")
layer = alt.Color("layer:O", title="layer").scale(scheme="viridis")
base = alt.Chart(heads)
points = base.mark_circle(size=70, opacity=1).encode(x, y, layer, tooltip=["layer", "head"])
across = base.mark_rule(opacity=0.5).encode(alt.X("effective_tokens_low:Q"), y, layer, x2="effective_tokens_high")
upright = base.mark_rule(opacity=0.5).encode(x, alt.Y("separability_low:Q"), layer, y2="separability_high")
random_sets = base.mark_rule(strokeDash=[5, 4], color="#79818c").encode(y=alt.datum(chance))
title = alt.TitleParams(
    "Heads that spread wide are not the ones that blur" if rank > -0.3 else "The wider a head, the less it separates",
    subtitle=[f"{len(heads)} heads at {options.length} tokens: {answer}"],
    anchor="start",
)
chart = alt.layer(random_sets, across, upright, points).properties(width=560, height=340, title=title)

picture = options.out / "own_figure.svg"
chart.configure_view(stroke=None).save(picture)
print(f"picture: {picture}")
