# %% [markdown]
# # LoRA under entmax
#
# A swap to another normalizer costs loss, because the weights were trained with softmax. **How much of it does a small
# adapter win back, and does all of it survive saving, loading and merging?** The embedded model gets entmax with an
# alpha that every head learns, and a LoRA of PEFT beside it. The same adapter under softmax is the control: what it
# wins there, it owes to the text and not to the normalizer.
#
# `python examples/lora_entmax.py --out FOLDER` takes about a minute on two cores, and needs `pip install peft`.

# %%
import argparse
import shutil
from pathlib import Path

import altair as alt
import peft
import polars as pl
import torch
from transformers import AutoModelForCausalLM

import abbe

parser = argparse.ArgumentParser(description="Train a LoRA under entmax; save, load, merge and export it.")
parser.add_argument("--out", type=Path, default=Path("example-lora-entmax"), help="folder for models and picture")
parser.add_argument("--steps", type=int, default=60, help="of each adapter")
parser.add_argument("--length", type=int, default=128, help="tokens per sequence")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own
shutil.rmtree(options.out, ignore_errors=True)  # of an earlier try
options.out.mkdir(parents=True)

# %% [markdown]
# ## Text
#
# Four fifths of the sample text that comes with abbe are trained on, the rest is held out.

# %%
tokenizer = abbe.load("embedded").tokenizer
tokens = tokenizer(abbe.read_text().content, return_tensors="pt", verbose=False).input_ids[0]
sequences = tokens[: len(tokens) // options.length * options.length].view(-1, options.length)
train, held_out = sequences[: len(sequences) * 4 // 5], sequences[len(sequences) * 4 // 5 :]
print(f"{len(train)} sequences of {options.length} tokens to train on, {len(held_out)} held out")


@torch.no_grad()
def loss_of(model):
    """Nats per token of the held-out text."""
    model.eval()
    return sum(float(model(input_ids=part, labels=part).loss) * len(part) for part in held_out.split(16)) / len(
        held_out
    )


# %% [markdown]
# ## Two adapters
#
# The swap comes after `get_peft_model`, which freezes all that it finds. Then alphas and adapter learn together; PEFT
# knows nothing of abbe.

# %%
ENTMAX = "entmax:alpha=1.5,learn=true"


def adapted(network):
    where = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}  # of GPT-2
    return peft.get_peft_model(network, peft.LoraConfig(**where, r=8, lora_alpha=16, task_type="CAUSAL_LM"))


def learn(model, name):
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)
    order = torch.Generator().manual_seed(0)
    for step in range(1, options.steps + 1):
        batch = train[torch.randint(len(train), (8,), generator=order)]
        model.train()(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, options.steps // 8) == 0:
            losses.append({"normalizer": name, "step": step, "loss": loss_of(model)})


losses = []
models = {}
for name in ("softmax", "entmax"):
    torch.manual_seed(0)
    models[name] = model = adapted(abbe.load("embedded").network)
    if name == "entmax":
        handle = abbe.swap(model, ENTMAX)
    losses.append({"normalizer": name, "step": 0, "loss": loss_of(model)})
    learn(model, name)
    first, last = (next(row for row in rows if row["normalizer"] == name) for rows in (losses, losses[::-1]))
    print(f"{name}: held-out loss {first['loss']:.3f} before, {last['loss']:.3f} after {options.steps} steps")
alphas = [alpha for (group,) in handle.normalizers.values() for alpha in group.normalizer.alpha]
print(f"alpha after training: {min(alphas):.2f} to {max(alphas):.2f}")

# %% [markdown]
# ## Saved and loaded
#
# `save_pretrained` of PEFT writes the plan beside the adapter. It is the third line of loading.

# %%
model, ids = models["entmax"].eval(), held_out[:4]
with torch.no_grad():
    wanted = model(input_ids=ids).logits
    model.save_pretrained(options.out / "adapter")
    again = peft.PeftModel.from_pretrained(abbe.load("embedded").network, options.out / "adapter")
    abbe.swap(again, f"file:{options.out / 'adapter' / 'abbe_plan.safetensors'}")
    print(f"adapter: loaded again, the same logits: {torch.equal(again.eval()(input_ids=ids).logits, wanted)}")

# %% [markdown]
# ## Merged, as a checkpoint and as an export
#
# A merged model is a plain network under a swap: its folder carries the plan, and `from_pretrained` loads it. `export`
# checks such a folder in a fresh process, and writes a card.

# %%
with torch.no_grad():
    merged = model.merge_and_unload()
    wanted = merged(input_ids=ids).logits
    merged.save_pretrained(options.out / "merged")
    again = AutoModelForCausalLM.from_pretrained(options.out / "merged")
    print(f"merged: loaded again, the same logits: {torch.equal(again(input_ids=ids).logits, wanted)}")
handle.restore()
plain = abbe.models.wrap(merged, tokenizer, "lora-entmax")
made = abbe.export(plain, options.out / "merged" / "abbe_plan.safetensors", options.out / "exported")
print(f"exported: outputs differ by {made.error:.0e} of their deviation in a fresh process")

# %% [markdown]
# ## The picture

# %%
colour = alt.Color("normalizer:N", title=None).scale(domain=["softmax", "entmax"], range=["#0072b2", "#d55e00"])
loss = alt.Y("loss:Q", title="held-out loss (nats per token)").scale(zero=False)
title = alt.TitleParams("What a LoRA wins back", subtitle="embedded model, entmax with learned alphas", anchor="start")
lines = alt.Chart(pl.DataFrame(losses), title=title, width=420, height=260).mark_line(point=True)
picture = options.out / "lora_entmax.svg"
lines.encode(alt.X("step:Q", title="step"), loss, colour.legend(orient="bottom")).configure_view(stroke=None).save(
    picture
)
print(f"picture: {picture}")
