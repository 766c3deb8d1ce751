"""A plan with learned slopes is carried by an export: the folder computes what the swap does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import byte_tokenizer, llama, tokens
from transformers import AutoModelForCausalLM

import abbe
from abbe.models import wrap


@pytest.mark.slow
@torch.no_grad()
def test_learned_slopes_are_carried(tmp_path: Path) -> None:
    model = wrap(llama(vocab_size=256), byte_tokenizer(64), "tiny")
    spec = "logn:trained=4,slope=-2/0/3/9,beyond=true,learn=true"
    with abbe.swap(model, {"layers.1": spec}) as swapped:
        swapped.save(tmp_path / "plan.safetensors")
        wanted = model(input_ids=tokens()).logits
    made = abbe.export(model, f"file:{tmp_path / 'plan.safetensors'}", tmp_path / "carried")
    assert not made.plain
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "carried").eval()
    torch.testing.assert_close(read(input_ids=tokens()).logits, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wanted, model(input_ids=tokens()).logits, atol=1e-5)
