"""Folders from anywhere: nothing in them is unpickled, fetched, run, read elsewhere, or measured in part."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from folders import IDS, change, save, weights
from folders import refusal as refused
from safetensors.torch import load_file, save_file
from small_gguf import small_llama, write_gguf
from tiny_models import GROUPED, NO_FEED_FORWARD, SMALL, gpt2, llama, make, t5
from transformers.integrations import hub_kernels

from abbe import AbbeError
from abbe.models import configuration, load

PACKED = {"quantization_config": {"quant_method": "mxfp4"}}


@pytest.fixture(autouse=True)
def touched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the network, of hub kernels, or of the unpickler: a test fails if there is anything."""
    asked: list[Any] = []

    def refuse(*args: Any, **more: Any) -> Any:
        asked.append(args)
        raise RuntimeError("this must not be reached")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", refuse)
    monkeypatch.setattr(transformers.modeling_utils, "is_kernels_available", lambda: True)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(llama(vocab_size=256), tmp_path / "model")


def refusal(name: object) -> str:
    start = time.perf_counter()
    reason = refused(name)
    assert time.perf_counter() - start < 60  # a few seconds, on a machine that does nothing else
    return reason


# Weights that are left out, missing, or of another shape.


@pytest.mark.parametrize(
    ("build", "layers", "name"),
    [
        (llama, "num_hidden_layers", "model.layers.2."),
        (gpt2, "n_layer", "transformer.h.2."),
        (lambda **more: make("GPT2Model", "GPT2Config", n_head=4, n_embd=32, **more), "n_layer", "h.2."),
        (lambda **more: make("BertForMaskedLM", "BertConfig", **(SMALL | more)), "num_hidden_layers", "layer.2."),
        (lambda **more: make("LlamaForSequenceClassification", "LlamaConfig", **(GROUPED | more)),
         "num_hidden_layers", "layers.2."),
        (t5, "num_decoder_layers", "decoder.block.2."),
    ],
)  # fmt: skip
def test_fewer_layers_than_the_weights_are_refused_by_name(
    tmp_path: Path, build: Callable[..., Any], layers: str, name: str
) -> None:
    folder = save(build(vocab_size=256, **{layers: 5}), tmp_path)
    assert load(folder)
    reason = refusal(change(folder, **{layers: 2}))
    assert "do not fit its config.json" in reason
    assert name in reason
    assert "are missing" in refusal(change(folder, **{layers: 7}))


LEGACY: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "GPT2LMHeadModel": (gpt2, ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
    "GPTNeoForCausalLM": (
        lambda: make("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=32, num_layers=1, num_heads=4,
                     attention_types=[[["global"], 1]]),
        ["transformer.h.0.attn.attention.bias", "transformer.h.0.attn.attention.masked_bias"],
    ),
    "LlamaForCausalLM": (llama, ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    "GPTNeoXForCausalLM": (
        lambda: make("GPTNeoXForCausalLM", "GPTNeoXConfig", **SMALL),
        ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"],
    ),
    "OPTForCausalLM": (
        lambda: make("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32, **NO_FEED_FORWARD), []
    ),
    # As bert-base-uncased: with a second head and a pooler that a masked language model does not have.
    "BertForMaskedLM": (lambda: make("BertForPreTraining", "BertConfig", **SMALL), ["bert.embeddings.position_ids"]),
    "BertModel": (lambda: make("BertForQuestionAnswering", "BertConfig", **SMALL), []),
    "T5ForConditionalGeneration": (t5, ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]),
}  # fmt: skip


@pytest.mark.parametrize("architecture", LEGACY)
def test_what_is_left_out_on_purpose_still_loads(tmp_path: Path, architecture: str) -> None:
    """Masks that older versions stored, and the heads of other tasks."""
    build, more = LEGACY[architecture]
    network = build()
    folder = save(network, tmp_path)
    weights(folder, lambda stored: stored | {name: torch.zeros(3) for name in more})
    loaded = load(change(folder, architectures=[architecture])).network
    assert type(loaded).__name__ == architecture
    body = {name.removeprefix(f"{network.base_model_prefix}."): weight for name, weight in network.state_dict().items()}
    read = {name.removeprefix(f"{network.base_model_prefix}."): weight for name, weight in loaded.state_dict().items()}
    assert len(read) > 10
    assert all(torch.equal(weight, body[name]) for name, weight in read.items() if "pooler" not in name)


def test_a_gguf_file_with_fewer_layers_than_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    for described, reason in (
        ({"num_hidden_layers": 1}, "describe 1 layers, its weights are of 2"),
        ({"num_hidden_layers": 10**9}, "describe 1,000,000,000 layers"),
        ({"intermediate_size": 10**8}, "parameters, its weights are"),
    ):
        assert reason in refusal(write_gguf(small_llama(), tmp_path / "small.gguf", described=described))


# Only safetensors inside the folder.


def shards(folder: Path, *names: str) -> Path:
    """The weights in files of these names, by an index."""
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: names[place % len(names)] for place, name in enumerate(stored)}
    for file in names:
        inside = {name: stored[name] for name, place in places.items() if place == file}
        if file.endswith(".bin"):
            torch.save(inside, folder / file)
        else:
            save_file(inside, folder / file, metadata={"format": "pt"})
    return change(folder, "model.safetensors.index.json", metadata={}, weight_map=places)


def lost(folder: Path, name: str) -> None:
    shards(folder, "x.safetensors", name)
    (folder / name).unlink()


REFUSED: dict[str, Callable[[Path], object]] = {
    "8 have no place in the LlamaForCausalLM, such as model.layers.0.self_attn.k_proj.bias": lambda folder: change(
        save(llama(attention_bias=True), folder), attention_bias=False
    ),
    "model.layers.0.mlp.down_proj.weight is 32 x 48, but should be 32 x 24 (6 such weights)": lambda folder: change(
        folder, intermediate_size=24
    ),
    "names y.safetensors, which is not there": lambda folder: lost(folder, "y.safetensors"),
    "model.safetensors is not a safetensors file": lambda folder: (folder / "model.safetensors").write_bytes(
        pickle.dumps({"a": 1})
    ),
    # transformers would read these instead of the other weights.
    "distributed checkpoint": lambda folder: save_file(
        {"a": torch.zeros(1)}, folder / "shard-00001-model-00001-of-00001.safetensors"
    ),
    "configuration_files": lambda folder: change(folder, configuration_files=["config.4.0.0.json"]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused_by_name(folder: Path, reason: str) -> None:
    REFUSED[reason](folder)
    assert reason in refusal(folder)


def test_a_sharded_folder_loads(folder: Path) -> None:
    whole = load(folder)
    assert whole.config is whole.network.config
    assert whole.name_or_path == str(folder)
    parts = load(shards(folder, "model-1.safetensors", "model-2.safetensors"))
    assert parts.fingerprint == whole.fingerprint


@pytest.mark.parametrize("decoy", ["decoy.safetensors", "model-00001-of-00001.safetensors"])
def test_an_index_that_names_a_pickle_is_refused(folder: Path, decoy: str) -> None:
    shards(folder, "pytorch_model.bin")
    save_file({"decoy": torch.zeros(1)}, folder / decoy)
    assert "names 'pytorch_model.bin': only *.safetensors inside the folder are read" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..\\x.safetensors", 3, None, [3]]
)
def test_an_index_that_names_a_file_elsewhere_is_refused(folder: Path, name: Any) -> None:
    shards(folder, "x.safetensors")
    (folder.parent / "x.safetensors").write_bytes((folder / "x.safetensors").read_bytes())
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    change(folder, "model.safetensors.index.json", weight_map=dict.fromkeys(index, name))
    assert "only *.safetensors inside the folder" in refusal(folder)


@pytest.mark.parametrize("listed", [None, [], {}, "x.safetensors"])
def test_an_index_of_nothing_is_refused(folder: Path, listed: object) -> None:
    shards(folder, "x.safetensors")
    assert "lists no files" in refusal(change(folder, "model.safetensors.index.json", weight_map=listed))


def test_links_lead_nowhere_but_into_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    whole = load(folder).fingerprint
    target = tmp_path / "elsewhere.safetensors"
    os.rename(folder / "model.safetensors", target)
    (folder / "model.safetensors").symlink_to(target)
    assert "is a link out of the folder" in refusal(folder)
    # As huggingface_hub lays out what it has fetched.
    repository = tmp_path / "hub" / "models--acme--small"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(folder.iterdir()):
        (repository / "blobs" / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert load(snapshot).fingerprint == whole
    linked = tmp_path / "linked"
    linked.symlink_to(snapshot)
    assert load(linked).fingerprint == whole


@pytest.mark.parametrize("name", ["adapter_model.bin", "other.safetensors", "../other.safetensors"])
def test_config_names_no_other_weights(folder: Path, name: str) -> None:
    assert "transformers_weights" in refusal(change(folder, transformers_weights=name))
    assert load(change(folder, transformers_weights="model.safetensors"))


# Nothing is fetched, and no code of others runs.


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize(
    "value",
    ["someone/kernel", "someone/kernel@main:run", "flash_attention_2", "paged|someone/kernel", {"": "someone/kernel"}],
)
def test_an_attention_of_others_is_ignored(folder: Path, key: str, value: Any, touched: list[Any]) -> None:
    plain = load(folder)
    model = load(change(folder, **{key: value}))
    assert model.config._attn_implementation == plain.config._attn_implementation == "sdpa"
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    assert not touched


def test_a_part_with_an_attention_of_others_is_ignored(tmp_path: Path, touched: list[Any]) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    one = transformers.BertConfig(vocab_size=256, **small)
    two = transformers.BertConfig(vocab_size=256, is_decoder=True, add_cross_attention=True, **small)
    both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(one, two)
    folder = save(transformers.EncoderDecoderModel(both), tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    for part in ("encoder", "decoder"):
        settings[part] |= {"attn_implementation": "someone/kernel", "experts_implementation": "deepgemm"}
    model = load(change(folder, **settings))
    assert model.kind == "encoder-decoder"
    assert model.config.encoder._attn_implementation == "sdpa"
    assert not touched
    timm = {"encoder": settings["encoder"] | {"backbone_config": {"model_type": "timm_backbone"}}}
    assert "timm_backbone" in refusal(change(folder, **timm))


def test_the_attention_of_transformers_and_abbe_is_kept(folder: Path) -> None:
    for name in ("eager", "sdpa", "abbe:sparsemax"):
        assert load(change(folder, attn_implementation=name)).config._attn_implementation == name


def test_code_beside_a_known_architecture_is_ignored(folder: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(folder / 'exploded')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "acme/evil--evil.Model"}
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(f"open({str(folder / 'exploded')!r}, 'w')")
    assert load(change(folder, auto_map=code, fusion_config={"patch_embeddings": True}))
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("settings", [PACKED, {"text_config": PACKED}, {"model_type": "yoso"}])
def test_what_would_fetch_kernels_is_refused(
    folder: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder, **settings)
    for offline, installed in ((False, None), (True, object())):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=installed: spec)
        assert configuration(folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert "may fetch code from the hub with the package kernels: set HF_HUB_OFFLINE=1" in refusal(folder)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (
            {"tokenizer_class": "LlamaForCausalLM"},
            "names the tokenizer_class LlamaForCausalLM, which is not a tokenizer",
        ),
        ({"tokenizer_class": "pipeline"}, "which is not a tokenizer"),
        ({"fast_tokenizer_files": ["../tokenizer.4.0.json"]}, "fast_tokenizer_files is '../tokenizer.4.0.json'"),
        ({"vocab_file": "/etc/hosts"}, "names a file elsewhere: vocab_file is '/etc/hosts'"),
        ({"init_inputs": ["/etc/hosts"]}, "has init_inputs"),
    ],
)
def test_tokenizers_are_only_tokenizers_of_the_folder(folder: Path, entries: dict[str, Any], reason: str) -> None:
    (folder.parent / "tokenizer.4.0.json").write_bytes((folder / "tokenizer.json").read_bytes())
    change(folder, attn_implementation="someone/kernel")  # which a model as tokenizer would read
    assert reason in refusal(change(folder, "tokenizer_config.json", **entries))


def test_paths_of_the_machine_that_wrote_a_tokenizer_mean_nothing(folder: Path) -> None:
    stale = {"tokenizer_file": "/etc/hosts", "vocab_file": "/nowhere/vocab.txt", "init_inputs": []}
    assert load(change(folder, "tokenizer_config.json", **stale)).tokenizer("a").input_ids == [97]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", ["[1]", "null", "{", '{"a": ' + "[" * 100_000, "\x00", '{"a": ' + "9" * 5000 + "}"])
def test_settings_that_are_no_settings(folder: Path, name: str, content: str) -> None:
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text(content)
    assert "cannot read" in refusal(folder)


# What config.json describes must fit the files.


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "llama"}, "describe 6,738,415,616 parameters, its weights are 31,904"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"model_type": "llama", "num_hidden_layers": 10**6}, "far more weights than it has"),
        ({"model_type": "llama", "hidden_size": 10**12}, "cannot read the model"),
        ({"model_type": "llama", "vocab_size": 10**12}, "parameters, its weights are"),
        ({"model_type": "bert", "num_labels": 10**9}, "num_labels is 1000000000"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "attention_types is 1000000000"),
        ({"model_type": "mixtral", "num_local_experts": 10**9}, "parameters, its weights are"),
        ({"model_type": "distilbert", "sinusoidal_pos_embds": True, "max_position_embeddings": 10**9}, "parameters"),
        (
            {"model_type": "gpt_neo", "hidden_size": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 256,
             "attention_types": [[["global"], 2]], "max_position_embeddings": 10**5},
            "ask for tables of 20,000,000,000 numbers",
        ),
        ({}, "has no model_type"),
        ({"model_type": 3}, "has no model_type"),
        ({"model_type": "no such"}, "does not recognize this architecture"),
    ],
)  # fmt: skip
def test_a_small_folder_takes_little_memory(folder: Path, settings: dict[str, Any], reason: str) -> None:
    (folder / "config.json").write_text(json.dumps(settings))
    assert reason in refusal(folder)
    if "num_hidden_layers is" in reason:  # a configuration alone is bounded, too
        with pytest.raises(AbbeError, match=reason):
            configuration(folder)


@pytest.mark.parametrize("shape", [None, [-1], ["a"], [10**300] * 9])
def test_headers_that_lie(folder: Path, shape: Any) -> None:
    entries = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}
    header = json.dumps(entries if shape else [1]).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert "model.safetensors is not a safetensors file" in refusal(folder)
    (folder / "model.safetensors").write_bytes(bytes([255] * 7 + [127]) + header)
    assert "model.safetensors is not a safetensors file" in refusal(folder)


# Adapters.


def test_an_adapter_is_said_to_be_one(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "adapter"
    alone.mkdir()
    change(alone, "adapter_config.json", base_model_name_or_path="acme/small", peft_type="LORA")
    reason = refusal(alone)
    assert "is a PEFT adapter of 'acme/small', not a model" in reason
    assert "merge_and_unload" in reason
    change(folder, "adapter_config.json", base_model_name_or_path="acme/small")
    assert "holds a model and a PEFT adapter of 'acme/small'" in refusal(folder)
    (alone / "adapter_config.json").write_text("[]")
    assert "adapter_config.json is not a JSON object" in refusal(alone)
