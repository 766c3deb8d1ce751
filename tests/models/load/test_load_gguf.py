"""GGUF files: the weights that come out, files that are truncated or broken, and the cache of what was converted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import IDS, refusal
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from small_gguf import small_llama, write_gguf
from torch import Tensor
from transformers import PreTrainedTokenizerFast, modeling_gguf_pytorch_utils

from abbe import AbbeError
from abbe.models import load


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the folder of converted files."""
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(small_llama(), tmp_path_factory.mktemp("gguf") / "small.gguf", begin=True)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were converted, each time."""
    honest, files = modeling_gguf_pytorch_utils.load_gguf_checkpoint, []

    def counted(path: str, *more: Any, **options: Any) -> Any:
        if options.get("return_tensors"):
            files.append(Path(path))
        return honest(path, *more, **options)

    monkeypatch.setattr(modeling_gguf_pytorch_utils, "load_gguf_checkpoint", counted)
    return files


@torch.no_grad()
def logits(network: Any) -> Tensor:
    out: Tensor = network(input_ids=IDS).logits
    return out


def test_a_gguf_file_gives_the_weights_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    original = small_llama()
    path = write_gguf(original, tmp_path / "small.gguf")
    capfd.readouterr()
    model = load(path)
    assert (model.kind, model.context) == ("decoder", 64)
    assert "GGUF" in model.about
    assert model.network.config.rope_parameters["rope_theta"] == 100000.0  # type: ignore[union-attr, index]
    torch.testing.assert_close(logits(model.network), logits(original), rtol=0, atol=1e-6)
    text = "two words, né 12"
    assert model.tokenizer.decode(model.tokenizer(text)["input_ids"]) == text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("begin", [True, False])
def test_a_gguf_file_that_asks_for_a_begin_token_gets_it(tmp_path: Path, begin: bool) -> None:
    path = write_gguf(small_llama(), tmp_path / "small.gguf", begin=begin)
    ids = load(path).tokenizer("ab")["input_ids"]
    assert (ids[0] == 257) == begin
    assert ids.count(257) == begin


def test_broken_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "noise.gguf").write_bytes(b"GGUF" + bytes(100))
    assert "noise.gguf as GGUF" in refusal(tmp_path / "noise.gguf")
    lacking = write_gguf(small_llama(), tmp_path / "lacking.gguf", without="blk.1.ffn_up.weight")
    assert "such as model.layers.1.mlp.up_proj.weight" in refusal(lacking)


@given(data=st.data())
def test_a_file_that_is_cut_off_anywhere_is_truncated(whole: Path, data: st.DataObject) -> None:
    """Header, settings, vocabulary, list of weights, weights: wherever the file ends, one line says so."""
    content, cut = whole.read_bytes(), whole.with_name("cut.gguf")
    table = content.index(b"token_embd.weight")
    longest = len(content) - 1
    length = data.draw(st.one_of(st.integers(0, 64), st.integers(0, table + 2000), st.integers(0, longest)))
    cut.write_bytes(content[:length])
    expected = r"^\S+cut.gguf is truncated: it(s weights end| ends| has) .*; fetch the file again$"
    with pytest.raises(AbbeError, match=expected):
        load(cut)


def test_where_a_file_was_cut_is_said(whole: Path, tmp_path: Path, cache: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "cut.gguf"

    def reason(length: int) -> str:
        path.write_bytes(content[:length])
        return refusal(path).partition(" is truncated: ")[2]

    assert reason(0) == "it has 0 bytes; fetch the file again"
    assert reason(20) == "it ends after 20 bytes, within its header; fetch the file again"
    assert reason(60) == "it ends after 60 bytes, within its settings; fetch the file again"
    table = content.index(b"output_norm.weight")
    assert reason(table) == f"it ends after {table:,} bytes, within its list of weights; fetch the file again"
    full, short = len(content), len(content) - 1000
    assert reason(short) == f"its weights end at byte {full:,}, but it has {short:,} bytes; fetch the file again"
    assert not cache.exists()


def test_the_second_load_converts_nothing_and_gives_the_same_bits(
    whole: Path, conversions: list[Path], cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = load(whole)
    second = load(whole)
    assert conversions == [whole]
    assert first.fingerprint == second.fingerprint
    assert first.configuration == second.configuration
    assert (first.about, first.source, first.context) == (second.about, second.source, second.context)
    assert second.tokenizer("ab").input_ids == [257, 97, 98]
    assert torch.equal(logits(first.network), logits(second.network))
    torch.testing.assert_close(logits(second.network), logits(small_llama()), rtol=0, atol=1e-6)
    assert len(list(cache.iterdir())) == 1
    assert capfd.readouterr() == ("", "")


def test_the_content_decides_not_the_name(whole: Path, tmp_path: Path, conversions: list[Path]) -> None:
    load(whole)
    copied = shutil.copy(whole, tmp_path / "other.gguf")
    assert load(copied).source == str(copied)
    assert conversions == [whole]
    changed = bytearray(whole.read_bytes())
    changed[-200] ^= 1  # a weight
    (tmp_path / "other.gguf").write_bytes(changed)
    assert load(copied).fingerprint != load(whole).fingerprint
    assert conversions == [whole, copied]


def test_without_a_cache_the_model_is_the_same_in_any_precision(
    whole: Path, tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, half = load(whole), load(whole, dtype=torch.bfloat16).network
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "file"))
    free, direct = load(whole), load(whole, dtype=torch.bfloat16).network
    assert conversions == [whole] * 3
    assert (free.fingerprint, free.configuration) == (kept.fingerprint, kept.configuration)
    for name, weight in direct.named_parameters():
        assert torch.equal(half.get_parameter(name), weight)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the weights": lambda folder: flip(folder / "model.safetensors"),
    "a bit of the vocabulary": lambda folder: flip(folder / "tokenizer.json"),
    "the settings are gone": lambda folder: (folder / "config.json").unlink(),
    "no facts": lambda folder: (folder / "ABOUT.json").write_text("{"),
    "facts of another kind": lambda folder: (folder / "ABOUT.json").write_text("[1]"),
    "nothing left": lambda folder: shutil.rmtree(folder) or folder.mkdir(),
    "another version made it": lambda folder: made_by(folder, "0.1"),
}


def made_by(folder: Path, version: str) -> None:
    facts = json.loads((folder / "ABOUT.json").read_text())
    (folder / "ABOUT.json").write_text(json.dumps(facts | {"transformers": version}))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_cache_is_made_again(name: str, whole: Path, cache: Path, conversions: list[Path]) -> None:
    fingerprint = load(whole).fingerprint
    (folder,) = cache.iterdir()
    DAMAGE[name](folder)
    assert load(whole).fingerprint == fingerprint
    assert conversions == [whole, whole]
    assert load(whole).fingerprint == fingerprint
    assert conversions == [whole, whole]
    assert list(cache.iterdir()) == [folder]


@pytest.mark.quick(1)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error")], ids=str)
def test_a_disk_that_fills_up_leaves_nothing(
    whole: Path, cache: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(type(small_llama()), "save_pretrained", fail)
    assert torch.equal(logits(load(whole).network), logits(load(whole).network))
    assert list(cache.iterdir()) == []


def test_a_tokenizer_that_would_change_is_not_kept(whole: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(tokenizer: Any, folder: Path) -> None:
        text = json.loads(tokenizer.backend_tokenizer.to_str())
        (folder / "tokenizer.json").write_text(json.dumps(text | {"post_processor": None}))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", lossy)
    assert load(whole).tokenizer("ab").input_ids == [257, 97, 98]
    assert list(cache.iterdir()) == []


def test_a_converter_that_was_faster(whole: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes convert the same file: the second finds the folder of the first in its place."""
    rename = os.rename

    def late(source: Any, target: Any) -> None:
        if Path(source).name == "model":
            shutil.copytree(source, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert load(whole).kind == "decoder"
    assert len(list(cache.iterdir())) == 1
