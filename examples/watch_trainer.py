# %% [markdown]
# # Watch a run of Hugging Face's Trainer
#
# `abbe.Monitor` is a callback of transformers' `Trainer`. It reads the attention of every head from the batches that
# are trained on anyway, and the weights at the end are bit-identical with and without it. **Would it have noticed a
# learning rate that is too large, and when?** The embedded model is tuned twice on its sample text: at a rate that it
# bears, and at one that breaks it.
#
# `python examples/watch_trainer.py --out FOLDER` takes about a minute on two cores, and needs `pip install accelerate`,
# as Trainer itself does.

# %%
import argparse
import shutil
from pathlib import Path

import altair as alt
import polars as pl
import transformers

import abbe

parser = argparse.ArgumentParser(description="Watch two runs of Trainer with abbe.Monitor.")
parser.add_argument("--out", type=Path, default=Path("example-watch-trainer"), help="folder for runs, pages, picture")
parser.add_argument("--steps", type=int, default=40, help="of each run")
parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own
transformers.set_seed(0)

# %% [markdown]
# ## Texts
#
# Any data set that Trainer takes will do. Here the sample text that comes with abbe, cut into sequences.

# %%
tokenizer = abbe.load("embedded").tokenizer
tokens = tokenizer(abbe.read_text().content, return_tensors="pt", verbose=False).input_ids[0]
sequences = tokens[: len(tokens) // options.length * options.length].view(-1, options.length)
texts = [{"input_ids": row, "labels": row} for row in sequences]
print(f"{len(texts)} sequences of {options.length} tokens")

# %% [markdown]
# ## Two runs
#
# The monitor is one entry of `callbacks`. With `on_alert="stop"` it would end a run at its first alert; here both runs
# go on, so that we see what happens after it. Without a `folder` the run is kept in `abbe` within Trainer's folder.

# %%
RATES = {"steady": 3e-4, "too fast": 3e-2}
runs = {}
for name, rate in RATES.items():
    folder = options.out / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
    trainer = transformers.Trainer(
        abbe.load("embedded").network.requires_grad_(),  # what abbe loads is frozen
        transformers.TrainingArguments(
            str(folder),
            learning_rate=rate,
            lr_scheduler_type="constant",
            max_steps=options.steps,
            per_device_train_batch_size=4,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=texts,
        callbacks=[abbe.Monitor(every=2)],
    )
    trainer.train()
    runs[name] = abbe.open(folder / "abbe")

# %% [markdown]
# ## What the pages say
#
# Both runs report at step 1 the heads that are sharp in the model as it comes: an alert says what is, not that it is
# wrong. What follows is the news. `abbe watch FOLDER/too-fast/abbe` writes the same page; with `--follow` it keeps the
# page fresh while a run goes on.

# %%
for name, run in runs.items():
    page = options.out / f"{name.replace(' ', '-')}.html"
    run.to_html(page)
    losses, news = run.steps["loss"], run.alerts.filter(pl.col("step") > 1)
    print(f"{name}: loss {losses[0]:.2f} to {losses[-1]:.2f}; {run.answer().sentence}")
    if not news.is_empty():
        print(f"  first news: {news['rule'][0]} at step {news['step'][0]}")
    print(f"  page: {page}")

# %% [markdown]
# ## The picture
#
# The table of alerts has a row for each: step, rule, layer, head, value and threshold. Beside the loss stand the heads
# that have raised one so far.

# %%
losses = pl.concat(run.steps.select("step", "loss", pl.lit(name).alias("run")) for name, run in runs.items())
alarmed = pl.DataFrame(
    {
        "step": step,
        "heads": run.alerts.filter(pl.col("step") <= step).select("layer", "head").n_unique(),
        "run": name,
    }
    for name, run in runs.items()
    for step in run.steps["step"]
)
colour = alt.Color("run:N", title=None, sort=list(RATES)).scale(range=["#0072b2", "#d55e00"]).legend(orient="bottom")
step = alt.X("step:Q", title="step")
loss = alt.Y("loss:Q", title="loss (nats per token)").scale(zero=False)
heads = alt.Y("heads:Q", title="heads that raised an alert so far").scale(domain=[0, 48])
left = alt.Chart(losses).mark_line(point=True).encode(step, loss, colour)
right = alt.Chart(alarmed).mark_line(point=True, interpolate="step-after").encode(step, heads, colour)
panels = left.properties(width=330, height=260) | right.properties(width=330, height=260)
rates = " and ".join(f"{rate:g} ({name})" for name, rate in RATES.items())
title = alt.TitleParams(
    "What the loss says, and what the heads say", subtitle=f"AdamW at learning rates {rates}", anchor="start"
)
picture = options.out / "watch_trainer.svg"
panels.properties(title=title).configure_view(stroke=None).save(picture)
print(f"picture: {picture}")
