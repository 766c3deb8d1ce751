"""Models of TransformerLens and nnsight: measured through the network within, or one line that says what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
from tiny_models import byte_tokenizer, gpt2, llama, tokens
from tiny_runs import QUICK, TEXT

import abbe

STUDIES = {
    "diagnose": lambda model: abbe.diagnose(model, TEXT, lengths=16, tokenizer=tiny_models.byte_tokenizer(64), **QUICK),
    "wrap": lambda model: abbe.models.wrap(model, tiny_models.byte_tokenizer(64)),
    "tap": abbe.tap,
    "swap": lambda model: abbe.swap(model, "sparsemax"),
    "plan": lambda model: abbe.plan(model, "sparsemax"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt2")
    tokenizer = tiny_models.byte_tokenizer(64)
    tokenizer.pad_token = "!"
    for part in (tiny_models.gpt2(vocab_size=256), tokenizer):
        part.save_pretrained(path)  # type: ignore[operator]
    return path


@pytest.mark.parametrize("study", STUDIES)
def test_a_transformer_bridge_is_refused_by_name(study: str, folder: Path) -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), device="cpu")
    with pytest.raises(abbe.AbbeError, match=r"TransformerBridge.*, which computes its attention itself: load the"):
        STUDIES[study](bridge)


@pytest.mark.parametrize("study", STUDIES)
def test_an_nnsight_model_is_measured_through_its_module(study: str, folder: Path) -> None:
    nnsight: Any = pytest.importorskip("nnsight")
    model = nnsight.LanguageModel(str(folder), dispatch=True)
    with pytest.raises(abbe.AbbeError, match=r"LanguageModel.*: give its `_module`, the network that it holds") as said:
        STUDIES[study](model)
    assert "\n" not in str(said.value)
    made = STUDIES[study](model._module)
    if study == "diagnose":
        wanted = STUDIES[study](abbe.load(folder).network)
        assert made.table.drop("model").equals(wanted.table.drop("model"))
    if study == "swap":
        made.restore()


def test_weights_that_nnsight_has_not_loaded_are_one_line(folder: Path) -> None:
    nnsight: Any = pytest.importorskip("nnsight")
    model = nnsight.LanguageModel(str(folder), dispatch=False)
    with pytest.raises(abbe.AbbeError, match="are on the meta device: load them into memory first"):
        STUDIES["diagnose"](model._module)


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
