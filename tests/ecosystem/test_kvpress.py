"""kvpress's head-wise presses under a tap, a swap and a name of abbe, imported before and after abbe."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import abbe

if importlib.util.find_spec("kvpress") is None:  # not imported here, where it would wrap the functions of other tests
    pytest.skip("kvpress is not installed", allow_module_level=True)

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
for package in sys.argv[2:]:
    __import__(package)
import abbe, torch
from abbe.models import register_attention_names
from kvpress import AdaKVPress, KnormPress
from tiny_models import llama, tokens
from transformers import DynamicCache

network, ids = llama(), tokens()


@torch.no_grad()
def logits(ratio):
    cache, first = DynamicCache(config=network.config), torch.arange(16)
    with AdaKVPress(KnormPress(ratio))(network):
        network(input_ids=ids[:, first], past_key_values=cache, cache_position=first)
    return torch.cat([network(input_ids=ids[:, i : i + 1], past_key_values=cache).logits for i in (16, 17, 18)], 1)


pressed, whole = logits(0.5), logits(0.0)
assert (pressed - whole).abs().max() > 0.1
for open_session in (lambda: abbe.tap(network), lambda: abbe.swap(network, "softmax")):
    with open_session():
        for ratio, want in ((0.5, pressed), (0.0, whole)):  # the second text forgets what was cut in the first
            torch.testing.assert_close(logits(ratio), want, atol=1e-5, rtol=0)
with abbe.swap(network, "sparsemax"):
    sparse, sparse_whole = logits(0.5), logits(0.0)
assert (sparse - sparse_whole).abs().max() > 0.1
for name, want in (("abbe:softmax", pressed), ("abbe:sparsemax", sparse)):
    network.set_attn_implementation(name)
    torch.testing.assert_close(logits(0.5), want, atol=1e-5, rtol=0)
"""


@pytest.mark.parametrize("packages", [("kvpress", "abbe.models"), ("transformers", "abbe.models", "kvpress")])
def test_a_head_wise_press(packages: tuple[str, ...]) -> None:
    """In processes of their own, since kvpress wraps what is registered when it is imported."""
    models = Path(__file__).parents[1] / "models"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(models), *packages], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


TEXT = ("It was a dark and", " stormy night")


def test_a_loaded_model_is_evaluated() -> None:
    harness = pytest.importorskip("lm_eval.models.huggingface")
    instance = pytest.importorskip("lm_eval.api.instance").Instance
    loaded = abbe.load("embedded")
    model = harness.HFLM(pretrained=loaded, backend="causal")
    assert model.config is loaded.network.config
    assert model.max_length == loaded.context

    def loss() -> float:
        return float(model.loglikelihood([instance("loglikelihood", {}, TEXT, 0)], disable_tqdm=True)[0][0])

    def expected() -> float:
        ids = loaded.tokenizer("".join(TEXT), return_tensors="pt").input_ids
        given = len(loaded.tokenizer(TEXT[0]).input_ids)
        with torch.no_grad():
            chances = loaded(ids).logits[0].log_softmax(-1)
        return float(chances[given - 1 : -1].gather(1, ids[0, given:, None]).sum())

    plain = loss()
    assert plain == pytest.approx(expected(), abs=1e-3)
    with abbe.swap(loaded, "topk:k=2"):
        assert loss() == pytest.approx(expected(), abs=1e-3)
        assert abs(loss() - plain) > 0.1
    asked = instance("generate_until", {}, (TEXT[0], {"until": ["\n\n"], "max_gen_toks": 4, "do_sample": False}), 0)
    ids = loaded.tokenizer(TEXT[0], return_tensors="pt")
    new = loaded.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids.input_ids.shape[1] :]
    assert model.generate_until([asked], disable_tqdm=True)[0] == loaded.tokenizer.decode(new)
