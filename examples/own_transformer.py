# %% [markdown]
# # `abbe.attention` in your own transformer
#
# A small character model, written from scratch in plain torch. The one line that differs from a textbook is the call
# of `abbe.attention`, which takes any of abbe's normalizers by name, differentiates through it, and never stores the
# matrix of weights. **What does a sparse normalizer change when it is trained with from the start?** The same network
# is trained with softmax, with entmax-1.5 and with entmax whose alpha every head learns; a tap looks at the weights,
# and a report measures every head of the last one.
#
# `python examples/own_transformer.py --out FOLDER` takes about a minute on two cores.

# %%
import argparse
import time
from pathlib import Path

import altair as alt
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abbe

parser = argparse.ArgumentParser(description="Train a small transformer whose attention is abbe's.")
parser.add_argument("--out", type=Path, default=Path("example-own-transformer"), help="folder for the picture")
parser.add_argument("--steps", type=int, default=200, help="of training, for each normalizer")
parser.add_argument("--context", type=int, default=128, help="characters per sequence")
options, _ = parser.parse_known_args()  # the kernel of a notebook has arguments of its own
options.out.mkdir(parents=True, exist_ok=True)

LAYERS, HEADS, WIDTH, BATCH = 2, 4, 64, 16

# %% [markdown]
# ## The network
#
# A normalizer is an `nn.Module`, so one with parameters (here an alpha per head) is trained, saved and moved like any
# other part of the network. With `F.scaled_dot_product_attention` or `nn.MultiheadAttention` in its place, all that
# follows is the same.

# %%


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, normalizer: str) -> None:
        super().__init__()
        self.normalizer = abbe.normalizer(normalizer)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = abbe.attention(query, key, value, self.normalizer, causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.second(x))


class Network(nn.Module):
    def __init__(self, normalizer: str, symbols: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(options.context, WIDTH)
        self.blocks = nn.ModuleList(Block(normalizer) for _ in range(LAYERS))
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, symbols)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.symbols(characters) + self.places.weight[: characters.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


# %% [markdown]
# ## The text
#
# The sample that comes with abbe, character by character. The last tenth is kept for the loss on new text.

# %%
content = abbe.read_text().content
alphabet = sorted(set(content))
stream = torch.tensor([alphabet.index(character) for character in content])
known, new = stream[: len(stream) * 9 // 10], stream[len(stream) * 9 // 10 :]
print(f"{len(stream):,} characters, {len(alphabet)} of them different")


def batch(source: Tensor, chance: torch.Generator) -> Tensor:
    """Sequences that begin at random places, one character longer than the context."""
    starts = torch.randint(len(source) - options.context, (BATCH,), generator=chance)
    return torch.stack([source[start : start + options.context + 1] for start in starts])


def loss_on(network: Network, sequences: Tensor) -> Tensor:
    return F.cross_entropy(network(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())


# %% [markdown]
# ## Training
#
# The same first weights, the same batches, the same rate: only the normalizer differs. A tap passes on what every layer
# computes with: from that, the share of visible keys whose weight is exactly 0.

# %%


def zeros_of(network: Network, sequences: Tensor) -> float:
    shares: list[Tensor] = []

    def look(call: abbe.models.AttentionCall) -> None:
        weights, visible = call.weights(), call.visible(torch.arange(sequences.shape[1]))
        shares.append(((weights == 0) & visible).sum() / visible.expand_as(weights).sum())

    with abbe.tap(network.eval()) as tap, torch.no_grad():
        tap.check(sequences)  # the calls give the network's output
        tap.listen(look)
        network(sequences)
    return float(torch.stack(shares).mean())


NORMALIZERS = {
    "softmax": "softmax",
    "entmax-1.5": "entmax:alpha=1.5,learn=false",
    "entmax, learned alpha": f"entmax:alpha=1.5,learn=true,heads={HEADS}",
}
curves, looks, networks = [], [], {}
for name, spec in NORMALIZERS.items():
    torch.manual_seed(0)
    network = networks[name] = Network(spec, len(alphabet))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    chance, begun = torch.Generator().manual_seed(1), time.perf_counter()
    for step in range(1, options.steps + 1):
        loss = loss_on(network, batch(known, chance))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 or step % max(1, options.steps // 20) == 0:
            with torch.no_grad():
                later = torch.Generator().manual_seed(2)
                unseen = torch.stack([loss_on(network, batch(new, later)) for _ in range(4)]).mean().item()
            curves.append({"normalizer": name, "step": step, "loss": unseen})
    seconds = time.perf_counter() - begun

    zeros = zeros_of(network, batch(new, torch.Generator().manual_seed(3))[:, :-1])
    looks.append({"normalizer": name, "zeros": zeros, "loss": unseen, "seconds": seconds})
    print(f"{name}: loss on new text {unseen:.3f}, exact zeros {looks[-1]['zeros']:.0%}, {seconds:.0f} s")

learned = networks["entmax, learned alpha"]
print("alphas that the heads learned, by layer:")
for number, block in enumerate(learned.blocks):
    print(f"  layer {number}: {', '.join(f'{alpha:.2f}' for alpha in block.normalizer.alpha)}")

# %% [markdown]
# ## The report
#
# As for a model of transformers, with token ids in place of a text. The network tells no context: `wrap` is told.

# %%
model = abbe.models.wrap(learned, name="own transformer", context=options.context)
lengths = [options.context // 4, options.context // 2, options.context]
report = abbe.report(model, tokens=new, lengths=lengths, windows=4, folder=options.out / "report", progress=False)
print(f"report: {report.answer.sentence}")

# %% [markdown]
# ## The picture
#
# Left the loss on new text, right the share of visible keys whose weight is exactly 0.

# %%
colour = alt.Color("normalizer:N", title=None, sort=list(NORMALIZERS)).scale(range=["#0072b2", "#d55e00", "#008a64"])
lines = (
    alt.Chart(pl.DataFrame(curves))
    .mark_line(strokeWidth=2)
    .encode(
        alt.X("step:Q"),
        alt.Y("loss:Q", title="nats per character, new text").scale(zero=False),
        colour.legend(orient="bottom"),
    )
)
bars = (
    alt.Chart(pl.DataFrame(looks))
    .mark_bar()
    .encode(
        alt.X("normalizer:N", title=None, sort=list(NORMALIZERS)).axis(labelAngle=0, labelLimit=140),
        alt.Y("zeros:Q", title="visible keys with a weight of exactly 0").axis(format="%").scale(domain=[0, 1]),
        colour.legend(None),
    )
)
panels = lines.properties(width=330, height=260) | bars.properties(width=330, height=260)
title = alt.TitleParams("One network, trained with three normalizers", anchor="start")
picture = options.out / "own_transformer.svg"
panels.properties(title=title).configure_view(stroke=None).save(picture)
print(f"picture: {picture}")
