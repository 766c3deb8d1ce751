# %% [markdown]
# # Does the Gaussian mass law hold for real heads?
#
# If the logits of a query were independent draws from a normal distribution with standard deviation σ, the top fraction
# ρ of its keys would hold a weight of Φ(σ + Φ⁻¹(ρ)) (arXiv 2512.07647; `abbe.bounds.mass_law`). Solved for ρ, it says
# how many keys hold 95 % of the weight, from one number per query. **How many really do?** Every head is one point: the
# prediction from the logits' standard deviation, and the count.
#
# `python examples/mass_law.py --out FOLDER` takes 10 seconds on two cores.

# %%
import argparse
from pathlib import Path

import altair as alt
import polars as pl
import torch
from torch import Tensor
from torch.special import ndtr, ndtri

import abbe

parser = argparse.ArgumentParser(description="Keys that hold 95 % of the weight: the Gaussian mass law, and the count.")
parser.add_argument("--out", type=Path, default=Path("example-mass-law"), help="folder for the picture")
parser.add_argument("--model", action="append", help="model to look at; may be repeated (default: embedded)")
parser.add_argument("--text", help="text file (default: the sample that comes with abbe)")
parser.add_argument("--length", type=int, default=512, help="tokens per window")
parser.add_argument("--windows", type=int, default=8, help="windows, from which the intervals come")
parser.add_argument("--skip", type=int, default=0, help="leave out the first keys of a window, such as 1 for a sink")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own
MASS = 0.95

# %% [markdown]
# ## One query: the law, and the count
#
# Hidden keys have a logit of -inf and take part in neither.


# %%
def predicted_keys(logits: Tensor) -> Tensor:
    """Keys that hold 95 % of the weight if the visible logits are normal; at least one."""
    seen = logits.isfinite()
    count = seen.sum(-1)
    mean = logits.where(seen, 0).sum(-1) / count
    variance = (logits - mean[..., None]).where(seen, 0).square().sum(-1) / count
    return (count * ndtr(ndtri(torch.tensor(MASS)) - variance.sqrt())).clamp(min=1)


def counted_keys(logits: Tensor) -> Tensor:
    """The least number of keys that hold 95 % of the weight."""
    mass = logits.softmax(-1).sort(-1, descending=True).values.double().cumsum(-1)
    return (mass < MASS).sum(-1) + 1


# %% [markdown]
# ## Every head, on windows of text
#
# `abbe.tap` passes on what every layer computes with. Queries come from the second half of a window, where each sees
# many keys; their numbers are averaged as logarithms, because they span three orders of magnitude.

# %%
queries = torch.linspace(options.length // 2, options.length - 1, 32).long()
rows: list[dict[str, object]] = []
for name in options.model or ["embedded"]:
    model = abbe.load(name)
    text = abbe.read_text(options.text)
    for window in abbe.windows(text, options.length, options.windows, 0, tokenizer=model.tokenizer):

        def see(call: abbe.models.AttentionCall, name: str = name, number: int = window.index) -> None:
            logits = call.logits(queries)[0, ..., options.skip :]
            law = predicted_keys(logits).log().mean(-1).tolist()
            count = counted_keys(logits).log().mean(-1).tolist()
            rows.extend(
                {"model": name, "window": number, "layer": call.layer, "head": head, "law": one, "count": other}
                for head, (one, other) in enumerate(zip(law, count, strict=True))
            )

        with abbe.tap(model) as tap, torch.no_grad():
            tap.listen(see)
            model(input_ids=window.tokens[None])
windows = pl.DataFrame(rows)
heads = windows.group_by("model", "layer", "head", maintain_order=True).agg(
    pl.col("law").mean().exp(), pl.col("count").mean().exp()
)

# %% [markdown]
# ## The answer, with its interval over windows, then the figure

# %%
answers = {}
for (name,), part in windows.group_by("model", maintain_order=True):
    each = (
        part.group_by("window", maintain_order=True).agg((pl.col("count") - pl.col("law")).mean())["count"].to_torch()
    )
    low, high = abbe.measures.bootstrap_interval(each)
    these = heads.filter(model=name)
    near = these.select(((pl.col("count") / pl.col("law")).log().abs() < torch.tensor(2.0).log().item()).mean()).item()
    rank = these.select(pl.corr("law", "count", method="spearman")).item()
    answers[name] = (
        f"{name}: counted over predicted {each.mean().exp():.2f} on average ({low.exp():.2f} to {high.exp():.2f}); "
        f"{near:.0%} of {len(these)} heads within a factor of 2; rank correlation {rank:.2f}"
    )
    print(answers[name])

# %%
scale = alt.Scale(type="log", domain=[1, options.length], nice=False)
axis = alt.Axis(grid=False, values=[1, 10, 100, 1000, 10_000])
depth = (pl.col("layer") / pl.col("layer").max().over("model")).alias("depth")
points = (
    alt.Chart(heads.with_columns(depth))
    .mark_circle(size=36, opacity=0.8)
    .encode(
        alt.X("law:Q", title=f"predicted keys for {MASS:.0%} of the weight", scale=scale, axis=axis),
        alt.Y("count:Q", title=f"counted keys for {MASS:.0%} of the weight", scale=scale, axis=axis),
        alt.Color("depth:Q", title="depth").scale(scheme="viridis").legend(format="%"),
        tooltip=["layer", "head"],
    )
)
ends = pl.DataFrame({"law": [1, options.length], "count": [1, options.length]})
equal = alt.Chart(ends).mark_line(strokeDash=[5, 4], color="#79818c").encode(x="law:Q", y="count:Q")
panels = [
    (equal + points.transform_filter(alt.datum.model == name)).properties(width=300, height=300, title=name)
    for name in answers
]
title = alt.TitleParams("The Gaussian mass law, head by head", subtitle=list(answers.values()), anchor="start")
chart = alt.hconcat(*panels).properties(title=title)

options.out.mkdir(parents=True, exist_ok=True)
picture = options.out / "mass_law.svg"
chart.configure_view(stroke=None).save(picture)
print(f"picture: {picture}")
