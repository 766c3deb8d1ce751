"""A network that TransformerLens has adopted computes its attention elsewhere: a tap or swap says so."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import byte_tokenizer, gpt2, llama, tokens

import abbe

model_bridge = pytest.importorskip("transformer_lens.model_bridge")


@pytest.mark.parametrize("build", [gpt2, llama], ids=lambda build: build.__name__)
@pytest.mark.parametrize("how", [lambda network: abbe.swap(network, "sparsemax"), abbe.tap], ids=["swap", "tap"])
def test_a_network_that_a_bridge_has_adopted(build: Any, how: Any, tmp_path: Any) -> None:
    network = build()
    network.config.save_pretrained(tmp_path)
    bridge = model_bridge.TransformerBridge.boot_transformers(
        str(tmp_path), hf_model=network, tokenizer=byte_tokenizer(), device="cpu"
    )
    expected = r"AttentionBridge ran without the attention function of .*\.0\._original_component.* load the model anew"
    for run in (lambda: network(input_ids=tokens()), lambda: bridge(tokens())):
        with how(network), pytest.raises(abbe.AbbeError, match=expected):
            run()
