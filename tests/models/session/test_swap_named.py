"""attn_implementation="abbe:entmax-1.5" and the like: which names there are, when they are known, what they compute."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from swap_reference import reference_output
from tiny_models import (
    FAMILIES,
    bert,
    gpt2,
    llama,
    main_output,
    mistral,
    padded,
    relative_error,
    t5,
    tokens,
    with_another_last_token,
)
from transformers import AutoModelForCausalLM, StaticCache, masking_utils

from abbe import AbbeError, list_normalizers, normalizer
from abbe.models import attention_names

pytestmark = pytest.mark.usefixtures("no_grad")
NAMES = attention_names()


def test_names_are_specs_with_one_parameter() -> None:
    assert NAMES["abbe:entmax-1.5"] == "entmax:alpha=1.5"
    assert NAMES["abbe:topk-32"] == "topk:k=32"
    assert NAMES["abbe:topp-0.95"] == "topp:p=0.95"
    assert NAMES["abbe:sparsemax"] == "sparsemax"
    assert not any(word in name for name in NAMES for word in ("sdpa", "flash", "flex_attention", "/"))
    for spec in NAMES.values():
        assert not list(normalizer(spec).parameters())


def test_every_normalizer_that_does_not_learn_has_a_name() -> None:
    learns = {info.name for info in list_normalizers() if list(normalizer(info.name).parameters())}
    of_others = {info.name for info in list_normalizers() if any(o.kind == "normalizer" for o in info.parameters)}
    missing = {info.name for info in list_normalizers()} - {normalizer(spec).name for spec in NAMES.values()}
    assert missing == learns | of_others
    assert learns == {"learned-temperature"}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_named_model_computes_what_a_swapped_one_does(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    wanted = reference_output(network, "entmax:alpha=1.5", **inputs)
    network.set_attn_implementation("abbe:entmax-1.5")
    assert relative_error(wanted, main_output(network(**inputs))) < 2e-5


def test_padding_and_caches() -> None:
    network, ids = llama(), tokens()
    kept = padded(ids, "left")
    wanted = reference_output(network, "sparsemax", input_ids=ids, attention_mask=kept)
    whole = reference_output(network, "sparsemax", input_ids=ids)
    network.set_attn_implementation("abbe:sparsemax")
    assert relative_error(wanted, network(input_ids=ids, attention_mask=kept).logits, kept) < 2e-5
    cache = StaticCache(config=network.config, max_cache_len=32)
    first = network(input_ids=ids[:, :-1], past_key_values=cache).logits
    last = network(input_ids=ids[:, -1:], past_key_values=cache).logits
    assert relative_error(whole, torch.cat([first, last], 1)) < 2e-5


def test_a_model_is_made_or_read_with_a_name(tmp_path: Any) -> None:
    network = llama()
    network.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="abbe:sparsemax").eval()
    wanted = reference_output(network, "sparsemax", input_ids=tokens())
    assert relative_error(wanted, read(input_ids=tokens()).logits) < 2e-5
    with pytest.raises(ValueError, match=r"abbe:entmax-1\.37"):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="abbe:entmax-1.37")


def test_stick_breaking_is_refused_outside_causal_attention() -> None:
    decoder = llama()
    wanted = reference_output(decoder, "stick-breaking", input_ids=tokens())
    decoder.set_attn_implementation("abbe:stick-breaking")
    assert relative_error(wanted, decoder(input_ids=tokens()).logits) < 2e-5
    for network in (bert(attn_implementation="abbe:stick-breaking"), t5(attn_implementation="abbe:stick-breaking")):
        with pytest.raises(AbbeError, match="stick-breaking needs keys in causal order"):
            network(
                input_ids=tokens(), **({"decoder_input_ids": tokens()} if network.config.is_encoder_decoder else {})
            )


def test_masks_are_left_out_where_sdpa_leaves_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No query sees a later key either way: moving the last token leaves earlier logits as they are."""
    masks: list[Any] = []
    honest = masking_utils.sdpa_mask

    def seeing(*args: Any, **more: Any) -> Any:
        masks.append(honest(*args, **more))
        return masks[-1]

    monkeypatch.setattr(masking_utils, "sdpa_mask", seeing)
    ids, moved = tokens(), with_another_last_token(tokens())
    for build, kept, made in (
        (llama, None, False), (gpt2, None, False), (mistral, None, True),
        (llama, padded(ids, "left"), True), (gpt2, padded(ids, "right"), True),
    ):  # fmt: skip
        network = build(attn_implementation="abbe:sparsemax")
        masks.clear()
        one, other = (network(input_ids=each, attention_mask=kept).logits for each in (ids, moved))
        assert {mask is not None for mask in masks} == {made}
        seen = slice(None) if kept is None else kept[:, :-1].bool()
        assert torch.equal(one[:, :-1][seen], other[:, :-1][seen])
        assert kept is not None or not torch.equal(one[:, -1], other[:, -1])
    cache = StaticCache(config=network.config, max_cache_len=64)
    first = network(input_ids=ids[:, :-1], past_key_values=cache).logits
    assert relative_error(network(input_ids=ids).logits[:, :-1], first) < 2e-5


USE = """
import sys, torch
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=9)
made = AutoModelForCausalLM.from_config(config, attn_implementation="abbe:entmax-1.5")
made(input_ids=torch.arange(5)[None])
print(sum(getattr(finder, "module", "").startswith("transformers") for finder in sys.meta_path))
import inspect, transformers.modeling_utils as module
print(type(module.__loader__).__name__, "class AttentionInterface" in inspect.getsource(module))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import abbe",
        "import transformers, abbe",
        "import transformers.modeling_utils, abbe",
        "import abbe, transformers.modeling_utils",
        "import abbe, importlib; importlib.reload(abbe)",
        "import abbe, importlib.util; importlib.util.find_spec('transformers.modeling_utils')",
    ],
)
def test_names_are_known_in_any_order_of_imports(first: str) -> None:
    run = subprocess.run([sys.executable, "-c", f"{first}\n{USE}"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    # The watcher has gone, and the module of transformers is as ever.
    assert run.stdout.split() == ["0", "SourceFileLoader", "True"]
