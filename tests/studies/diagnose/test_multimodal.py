"""Models that read images and text: what cannot be read is skipped with a reason, or the part that works is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_runs
import torch
import transformers
from tiny_models import GROUPED, SMALL, byte_tokenizer, enlarge, tokens

import abbe
from abbe.models import tap

WORDS = {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
READER = GROUPED | WORDS
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2], "rope_type": "default"}}
MARKS = {"image_token_id": 292, "video_token_id": 293, "vision_start_token_id": 294, "vision_end_token_id": 295}


UNREAD = "its attention does not go through transformers' attention interface"


def make(kind: str, **settings: Any) -> Any:
    network = getattr(transformers, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = network(network.config_class(**settings)).eval()
        enlarge(made, 1.5)
    return made


def gemma3() -> Any:
    return make(
        "Gemma3ForConditionalGeneration",
        text_config=READER | {"head_dim": 8, "sliding_window": 16},
        vision_config=VISION,
        mm_tokens_per_image=4, boi_token_index=290, eoi_token_index=291, image_token_index=292,
    )  # fmt: skip


def llava() -> Any:
    vision = VISION | {"model_type": "clip_vision_model", "projection_dim": 32}
    text = READER | {"model_type": "llama"}
    return make("LlavaForConditionalGeneration", text_config=text, vision_config=vision, image_token_index=292)


def qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 14}
    return make("Qwen2VLForConditionalGeneration", text_config=READER | MROPE, vision_config=vision, **MARKS)


def clip() -> Any:
    return make("CLIPModel", text_config=SMALL | WORDS, vision_config=VISION)


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "gemma3": (gemma3, "model.language_model"),
    "llava": (llava, "model.language_model"),
    "qwen2-vl": (qwen2_vl, "model.language_model"),
    "clip": (clip, "text_model"),
}


def diagnose(network: Any) -> Any:
    return abbe.diagnose(
        network, tiny_runs.TEXT, lengths=[24], windows=1, queries=4, sizes=[2], temperatures=(),
        tokenizer=byte_tokenizer(), progress=False,
    )  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MODELS)
def test_the_part_that_reads_text_is_named_and_works(name: str) -> None:
    build, part = MODELS[name]
    network = build()
    with pytest.raises(abbe.AbbeError) as caught:
        diagnose(network)
    assert str(caught.value).endswith(f"; use its `{part}`, which reads text")
    assert type(network).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)
    run = diagnose(network.get_submodule(part))
    assert len(run.manifest["layers"]) == 2
    assert run.manifest["self_check"]["error"] < 1e-4


@torch.no_grad()
def test_a_pooling_head_is_skipped_with_the_reason() -> None:
    network = make("SiglipVisionModel", **VISION)
    pixels = {"pixel_values": torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))}
    before, heard = network(**pixels).pooler_output, []
    with tap(network) as t:
        assert t.check(**pixels) < 1e-5
        t.listen(lambda call: heard.append(call.name))
        after = network(**pixels).pooler_output
        (reason,) = t.skipped
    path, _, why = reason.partition(" ")
    assert path.endswith("head")
    assert why == f"(SiglipMultiheadAttentionPoolingHead): {UNREAD}"
    assert len(heard) == len(t.layers) == 2
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


def test_what_the_tap_skips_is_in_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder with an attention of its own making beside its layers."""
    network = tiny_runs.model("llama").network
    network.add_module("pool", torch.nn.MultiheadAttention(8, 2))
    run = diagnose(network)
    assert f"pool (MultiheadAttention): {UNREAD}" in run.manifest["skipped"]


@torch.no_grad()
def test_a_swap_of_the_text_part_changes_the_whole_model() -> None:
    network, ids = gemma3(), {"input_ids": tokens()}
    before = network(**ids).logits
    with pytest.raises(abbe.AbbeError, match=r"PoolingHead\); use its `model\.language_model`, which reads text$"):
        abbe.swap(network, "sparsemax")
    with abbe.swap(network.model.language_model, "sparsemax") as handle:
        assert handle.check(**ids) < 1e-5
        assert float((network(**ids).logits - before).abs().max()) > 0.01
    assert torch.equal(network(**ids).logits, before)
