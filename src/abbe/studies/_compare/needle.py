"""The needle test: does a model find the one right word in its prompt, and by how much?

Small models often do not: so every accuracy stands beside what guessing among the candidates would give.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import bootstrap_interval
from ...models import LoadedModel
from ...words.names import BASELINE
from .needle_gain import paired_gain
from .needle_prompts import Prompt
from .result import NEEDLE_SCHEMA

_TOKENS_AT_ONCE = 4096


@torch.no_grad()
def margins(
    model: LoadedModel, prompts: Sequence[Prompt], on_batch: Callable[[int], object] | None = None
) -> list[float]:
    """The logit of each right answer less that of the best wrong candidate; above 0 the answer is right."""
    found: list[float] = []
    for batch in batches(prompts):
        logits = _last_logits(model, torch.stack([prompt.tokens for prompt in batch]))
        found += [_margin(row, prompt) for row, prompt in zip(logits, batch, strict=True)]
        if on_batch is not None:
            on_batch(len(batch))
    return found


def batches(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Prompts of one length that stand together, as many as fit."""
    found: list[list[Prompt]] = []
    for prompt in prompts:
        last = found[-1] if found else []
        if last and last[0].length == prompt.length and (len(last) + 1) * prompt.length <= _TOKENS_AT_ONCE:
            last.append(prompt)
        else:
            found.append([prompt])
    return found


def _last_logits(model: LoadedModel, tokens: Tensor) -> Tensor:
    """(prompt, vocabulary) after the last token; a model that can leave out the others does."""
    network: Any = model.network
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(network.forward).parameters else {}
    logits: Tensor = network(input_ids=tokens.to(network.device), use_cache=False, **last_only).logits
    return logits[:, -1].double().cpu()


def _margin(logits: Tensor, prompt: Prompt) -> float:
    wrong = torch.tensor([word for word in prompt.candidates if word != prompt.answer])
    return float(logits[prompt.answer] - logits[wrong].max())


def needle_table(
    prompts: Sequence[Prompt], margins_of: Mapping[str, Sequence[float]], level: float, resamples: int, seed: int
) -> pl.DataFrame:
    """A row for every normalizer and cell: kind, length and depth, and all of them together where one is null.

    All answered the same prompts; gains are those over own, which has none itself.
    """
    cells, own = _cells(prompts), margins_of[BASELINE]
    rows = []
    for name, found in margins_of.items():
        for key, places in cells.items():
            chance = sum(prompts[place].chance for place in places) / len(places)
            mine, before = ([each[place] for place in places] for each in (found, own))
            numbers = cell_numbers(mine, level, resamples, seed)
            numbers |= {} if name == BASELINE else gain_numbers(before, mine, level)
            kind, length, depth = key
            rows.append(
                {"normalizer": name, "kind": kind, "length": length, "depth": depth, "chance": chance} | numbers
            )
    return pl.DataFrame(rows, schema=NEEDLE_SCHEMA)


Cell = tuple[str | None, int | None, float | None]


def _cells(prompts: Sequence[Prompt]) -> dict[Cell, list[int]]:
    """All; each kind; each kind and length; each kind and depth; each kind, length and depth."""
    found: dict[Cell, list[int]] = {(None, None, None): []} if prompts else {}
    for place, prompt in enumerate(prompts):
        kind, length, depth = prompt.kind, prompt.length, prompt.depth
        keys: tuple[Cell, ...] = (
            (None, None, None), (kind, None, None), (kind, length, None), (kind, None, depth), (kind, length, depth),
        )  # fmt: skip
        for key in keys:
            found.setdefault(key, []).append(place)
    return found


def cell_numbers(found: Sequence[float], level: float, resamples: int, seed: int) -> dict[str, Any]:
    """Accuracy with a Wilson interval, mean margin with one by resampling prompts."""
    right = sum(margin > 0 for margin in found)
    low, high = wilson(right, len(found), level)
    values = torch.tensor(found, dtype=torch.float64)
    ends = [float(end) for end in bootstrap_interval(values, level, resamples, seed)]
    numbers = [float(values.mean()), *ends]
    margin, margin_low, margin_high = (x if math.isfinite(x) else None for x in numbers)
    return {
        "prompts": len(found), "accuracy": right / len(found), "accuracy_low": low, "accuracy_high": high,
        "margin": margin, "margin_low": margin_low, "margin_high": margin_high,
    }  # fmt: skip


def gain_numbers(own: Sequence[float], found: Sequence[float], level: float) -> dict[str, float | None]:
    """Accuracy less own's on the same prompts, with its paired interval."""
    before, after = ([margin > 0 for margin in each] for each in (own, found))
    return dict(zip(("gain", "gain_low", "gain_high"), paired_gain(before, after, level), strict=True))


def wilson(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share, by the score test: never empty, also where all or none are right."""
    from scipy.stats import binomtest  # takes long to import

    ends = binomtest(right, total).proportion_ci(level, "wilson")
    return float(ends.low), float(ends.high)
