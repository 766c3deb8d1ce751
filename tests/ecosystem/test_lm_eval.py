"""lm-eval takes what `abbe.load` gives, and measures under a swap what abbe computes."""

from __future__ import annotations

import pytest
import torch

import abbe

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
