"""The needle test: does a model find the one right word in its prompt, and by how much?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....models import LoadedModel
from .prompts import Prompt

_TOKENS_AT_ONCE = 4096  # per batch: its activations stay small


@torch.no_grad()
def margins(
    model: LoadedModel, prompts: Sequence[Prompt], on_batch: Callable[[int], object] = lambda size: None
) -> list[float]:
    """The logit of each right answer minus that of the best wrong candidate; above 0 the answer is right."""
    by_prompt: list[float] = []
    for batch in batches(prompts):
        logits = _last_logits(model, torch.stack([prompt.tokens for prompt in batch]))
        by_prompt += [_margin(row, prompt) for row, prompt in zip(logits, batch, strict=True)]
        on_batch(len(batch))
    return by_prompt


def batches(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Consecutive prompts of the same length, as many as fit."""
    filled: list[list[Prompt]] = []
    for prompt in prompts:
        last = filled[-1] if filled else []
        if last and last[0].length == prompt.length and (len(last) + 1) * prompt.length <= _TOKENS_AT_ONCE:
            last.append(prompt)
        else:
            filled.append([prompt])
    return filled


def _last_logits(model: LoadedModel, tokens: Tensor) -> Tensor:
    """(prompt, vocabulary) after the last token; other logits are skipped if the model can."""
    network: Any = model.network
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(network.forward).parameters else {}
    logits: Tensor = network(input_ids=tokens.to(model.device), use_cache=False, **last_only).logits
    return logits[:, -1].cpu().double()


def _margin(logits: Tensor, prompt: Prompt) -> float:
    wrong = torch.tensor([word for word in prompt.candidates if word != prompt.answer])
    return float(logits[prompt.answer] - logits[wrong].max())
