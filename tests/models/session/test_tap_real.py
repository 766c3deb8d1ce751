"""The tap on trained models: the self-check holds, and the eager model's own weights are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from real import pulled, shared_model, shared_text
from test_tap_capture import eager_weights, listen
from torch import Tensor

from abbe.models import load, tap

pytestmark = pytest.mark.real


def words() -> str:
    return shared_text().read_text(encoding="utf-8")[50_000:60_000]


def model_and_tokens(path: Path, length: int, **settings: Any) -> tuple[Any, Tensor]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, use_safetensors=True, **settings).eval()
    return network, AutoTokenizer.from_pretrained(path)(words(), return_tensors="pt").input_ids[:, :length]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_trained_models_prove_themselves(name: str, implementation: str) -> None:
    network, ids = model_and_tokens(shared_model(name), 192, attn_implementation=implementation)
    with tap(network) as t:
        assert t.check(input_ids=ids) < 1e-4
        assert len(t.layers) == network.config.num_hidden_layers


@torch.no_grad()
@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_trained_models_give_their_own_weights(name: str) -> None:
    network, ids = model_and_tokens(shared_model(name), 128)
    calls, _ = listen(network, {"input_ids": ids})
    oracle = eager_weights(network, {"input_ids": ids})
    assert len(calls) == len(oracle) == network.config.num_hidden_layers
    for call in calls:
        torch.testing.assert_close(call.weights(), oracle["self", call.layer], atol=1e-5, rtol=0)
        assert call.value_to_output().shape[-1] == network.config.hidden_size


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_trained_model_in_half_precision(dtype: torch.dtype) -> None:
    network, ids = model_and_tokens(shared_model("stories15M"), 128)
    with tap(network.to(dtype)) as t:
        assert t.check(input_ids=ids) < 50 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_pulled_models_prove_themselves(name: str) -> None:
    model = load(pulled(name))
    inputs = model.tokenizer(words()[:1500], return_tensors="pt", truncation=True, max_length=256)
    with tap(model) as t:
        assert t.check(**inputs) < 1e-3
        assert len(t.layers) == model.network.config.num_hidden_layers
