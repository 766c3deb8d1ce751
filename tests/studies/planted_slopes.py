"""A small network whose head has lost its slope: texts whose answers it would give with that slope, and not without."""

from __future__ import annotations

from typing import Any

import tiny_models
import torch
from inside import prompts
from torch import Tensor

import abbe
from abbe.models import LoadedModel, wrap

TRAINED, LENGTH, SLOPE = 20, 60, 8.0
LAYER, HEAD = 1, 2
SPEC = f"logn:trained={TRAINED},slope=0,beyond=true,learn=true"
_WIDTH = 6  # tokens of an answer
_VOCABULARY = 40


def model() -> LoadedModel:
    """Attention decides what comes next: large logits, large outputs, no feed-forward part."""
    torch.manual_seed(3)
    network = tiny_models.gpt2(vocab_size=_VOCABULARY, n_positions=128)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "c_attn.weight" in name:
                weight.normal_(std=0.35)
            elif "attn.c_proj.weight" in name:
                weight.normal_(std=0.6)
            elif "wte" in name or "wpe" in name:
                weight.normal_(std=0.7)
            elif ".mlp." in name:
                weight.zero_()
    return wrap(network.eval(), tiny_models.byte_tokenizer(128), "planted slope")


def cure() -> dict[str, str]:
    return {f"layers.{LAYER}.heads.{HEAD}": f"logn:trained={TRAINED},slope={SLOPE},beyond=true"}


@torch.no_grad()
def haystacks(model: LoadedModel, count: int, questions: int, seed: int = 0) -> list[Any]:
    """Random text; the answers are drawn from what the cured network says."""
    chance = torch.Generator().manual_seed(seed)
    some = []
    with abbe.swap(model, cure()):
        for _ in range(count):
            body = torch.randint(_VOCABULARY, (LENGTH - 9,), generator=chance)
            asked = tuple((_answered(model, body, chance), _WIDTH) for _ in range(questions))
            some.append(prompts.Haystack(body, asked, (0.5,) * questions))
    return some


def _answered(model: LoadedModel, body: Tensor, chance: torch.Generator) -> Tensor:
    tokens = torch.cat([body, torch.randint(_VOCABULARY, (3,), generator=chance)])
    for _ in range(_WIDTH):
        after = model.network(input_ids=tokens[None]).logits[0, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(after, 1, generator=chance)])
    return tokens[len(body) :]
