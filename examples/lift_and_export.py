# %% [markdown]
# # Lift a model, export it, load it again
#
# **Which layers of this model would do as well with a sparse normalizer?** `abbe.lift` searches on training text,
# chooses on validation text and judges once on test text. `abbe.export` writes the plan down as a folder that
# `from_pretrained` loads, and checks it in a fresh process. The last cells load it as a reader of that folder would.
#
# `python examples/lift_and_export.py --out FOLDER` takes about a minute on two cores.

# %%
import argparse
import shutil
from pathlib import Path

import altair as alt
import polars as pl
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import abbe

parser = argparse.ArgumentParser(description="Lift the embedded model, export it, load the export.")
parser.add_argument("--out", type=Path, default=Path("example-lift"), help="folder for search, model and picture")
parser.add_argument("--windows", type=int, default=6, help="of validation and of test text; fewer than 6 never lift")
parser.add_argument("--length", type=int, default=256, help="tokens per window")
parser.add_argument("--steps", type=int, default=8, help="of tuning, for the plans of the last round")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own

# %% [markdown]
# ## Search, then test once
#
# Two candidates instead of the usual four, and few windows: this is an example, not a result. The search resumes from
# its folder.

# %%
lifted = abbe.lift(
    "embedded",
    normalizers=["sparsemax", "topp:p=0.9"],
    windows=options.windows,
    length=options.length,
    steps=options.steps,
    prompts=1,
    budget=None,
    folder=options.out / "search",
    progress=False,
)
lifted.to_html(options.out / "lift.html")
print(lifted.findings[0].sentence)
print(lifted.table.select("contender", "loss", "rise", "rise_low", "rise_high", "zeros", "active"))

# %% [markdown]
# ## Export
#
# A temperature would be folded into the weights. Other normalizers are carried beside them, and the folder loads once
# abbe is imported; whatever does not know abbe refuses it instead of computing with softmax.

# %%
folder = options.out / "model"
shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
exported = abbe.export("embedded", lifted.file, folder)
kind = "a plain checkpoint" if exported.plain else "weights with their plan beside them"
print(f"{folder}: {kind}; outputs differ by {exported.error:.0e} of their standard deviation")

# %% [markdown]
# ## Load it again
#
# Nothing but transformers, and `import abbe` above.

# %%
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
inputs = tokenizer("The lens of a microscope", return_tensors="pt")
written = model.generate(**inputs, max_new_tokens=20, do_sample=False, pad_token_id=0)
print(f"it writes: {tokenizer.decode(written[0])!r}")

original = abbe.load("embedded")
with torch.no_grad():
    again = model(**inputs).logits
    softmax = original(**inputs).logits
    with abbe.swap(original, f"file:{lifted.file}"):
        swapped = original(**inputs).logits
print(f"largest difference to the swapped model {(again - swapped).abs().max():.1e}, to softmax", end=" ")
print(f"{(again - softmax).abs().max():.1e}")

# %% [markdown]
# ## The picture
#
# Every plan that was tried, on the validation text: how many keys it drops, and what that costs.

# %%
plans = lifted.plans.with_columns(
    pl.when("chosen").then(pl.lit("tested")).otherwise(pl.lit("tried")).alias("state"),
    pl.when(pl.col("steps") > 0).then(pl.lit("tuned")).otherwise(pl.lit("fitted")).alias("made"),
)
x = alt.X("zeros:Q", title="visible keys with a weight of exactly 0").axis(format="%")
y = alt.Y("rise:Q", title="rise of the loss").axis(format="+.1%")
colour = alt.Color("state:N", title=None, sort=["tried", "tested"]).scale(range=["#5596c2", "#d55e00"])
base = alt.Chart(plans)
bars = base.mark_rule(opacity=0.5).encode(x, alt.Y("rise_low:Q"), colour, y2="rise_high")
points = base.mark_point(size=60, filled=True, opacity=1).encode(x, y, colour, alt.Shape("made:N", title=None))
allowed = base.mark_rule(strokeDash=[5, 4], color="#79818c").encode(y=alt.datum(0.005))
title = alt.TitleParams(
    "Plans of the search: what they drop, and what it costs",
    subtitle=f"dashed: the rise that is allowed. Tested: {lifted.plan}",
    anchor="start",
)
chart = alt.layer(allowed, bars, points).properties(width=560, height=320, title=title)
picture = options.out / "lift_and_export.svg"
chart.configure_view(stroke=None).save(picture)
print(f"picture: {picture}")
