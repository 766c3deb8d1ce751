"""The measures on a real forward pass, against the straightforward diagnosis of the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain import plain_diagnosis
from row_cases import seeded

import abbe
from abbe.measures import Rows, choose_sets, dispersion, geometry, patterns, selection, sensitivity, summarize

GRID = (1, 2, 4, 8, 16)
QUERIES = (0, 3, 9, 20, 31, 39)


@pytest.fixture(scope="module")
def network() -> Any:
    """A tiny random GPT-2 with weights large enough for attention that is not uniform."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = GPT2Config(
            n_layer=2,
            n_head=3,
            n_embd=24,
            n_positions=64,
            vocab_size=50,
            initializer_range=0.4,
            bos_token_id=0,
            eos_token_id=0,
        )
        config._attn_implementation = "eager"
        return GPT2LMHeadModel(config).double().eval()


@torch.no_grad()
def test_means_are_those_of_the_plain_way(network: Any) -> None:
    tokens = torch.randint(50, (40,), generator=seeded(1))
    plain = plain_diagnosis(network, tokens, GRID, QUERIES)
    states: list[torch.Tensor] = []
    blocks = network.transformer.h
    hooks = [block.attn.c_attn.register_forward_hook(lambda _m, _i, out: states.append(out[0])) for block in blocks]
    network(input_ids=tokens[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    for layer, state in enumerate(states):
        q, k, v = (part.view(40, 3, 8).transpose(0, 1) for part in state.split(24, -1))
        logits = (q @ k.mT / 8**0.5).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)[:, list(QUERIES)]
        softmax = abbe.normalizer("softmax")
        rows = Rows(logits, softmax(logits), v.contiguous(), softmax=True)
        sets = choose_sets(rows, GRID, seeded(2))
        readings = dispersion(rows) | patterns(rows, torch.tensor(QUERIES), tokens)
        readings |= selection(rows, sets) | geometry(rows, sets)
        summary = summarize(readings | sensitivity(rows, softmax, (1.0,), seeded(3)))
        # The plain way draws its own random sets and directions: only what is not random can be the same.
        for name in set(plain) - {"sensitivity_random_mean"}:
            if "/" not in name:
                close = 2e-2 if name == "sensitivity_worst_mean" else 1e-9  # 30 steps of plain power iteration
                want = plain[name][layer].double()
                torch.testing.assert_close(summary[name].value, want, rtol=close, atol=1e-12, equal_nan=True, msg=name)
    assert "distance/control" in plain
    assert plain["distance"].shape == (2, 3, len(GRID))
