"""What studies are given: the text itself, wrapped and training models, other tokenizers, models of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
import transformers
from tiny_runs import COSTS, OPTIONS, TEXT, quick
from torch import nn

import abbe

TOKENIZER = tiny_models.byte_tokenizer()
SHORT: dict[str, Any] = {"lengths": 16, "queries": 2, "windows": 2, "resamples": 10, "sizes": 1, "progress": False}
PROSE = "To be or not to be, that is the question " * 3


def network(**settings: Any) -> nn.Module:
    return tiny_models.gpt2(vocab_size=256, **settings)


def table(study: str, model: nn.Module) -> pl.DataFrame:
    """Its numbers, without those of the clock."""
    made: pl.DataFrame = quick(study, model, TEXT, tokenizer=TOKENIZER).table
    return made.drop(COSTS, strict=False)


# The text itself


def test_a_string_with_a_space_is_the_text_itself() -> None:
    run = abbe.diagnose(network(), PROSE, tokenizer=TOKENIZER, **SHORT)
    assert run.manifest["text"]["name"] == "text"
    assert run.manifest["text"]["fingerprint"] == abbe.Text("any", PROSE).fingerprint
    assert run.table.equals(abbe.diagnose(network(), abbe.Text("any", PROSE), tokenizer=TOKENIZER, **SHORT).table)


def test_a_line_of_text_is_measured_as_a_whole() -> None:
    run = abbe.diagnose(network(), "To be or not to be", tokenizer=TOKENIZER, progress=False)
    assert run.manifest["settings"]["lengths"] == [18]
    assert [(window["start"], window["end"]) for window in run.manifest["windows"]] == [(0, 18)]
    with pytest.raises(abbe.AbbeError, match="text has 3 tokens, too few for the shortest window: length 16"):
        abbe.diagnose(network(), "a b", tokenizer=TOKENIZER, **SHORT)


@pytest.mark.quick(2)
@pytest.mark.parametrize("study", OPTIONS)
def test_every_study_takes_the_text_itself(study: str) -> None:
    assert quick(study, network(), PROSE * 2, tokenizer=TOKENIZER).table.height > 0


# Wrapped models


@pytest.fixture
def one_process() -> Iterator[None]:
    """A group of one process, as DistributedDataParallel needs."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def wrapped(how: str, inner: nn.Module) -> nn.Module:
    if how == "compiled":
        return torch.compile(inner, backend="eager")  # type: ignore[return-value]
    if how == "distributed":
        return nn.parallel.DistributedDataParallel(inner)
    if how == "both":
        return torch.compile(nn.parallel.DistributedDataParallel(inner), backend="eager")  # type: ignore[return-value]
    if how == "in place":
        inner.compile(backend=_refused)
        return inner
    assert how == "parallel"
    return nn.DataParallel(inner)


def _refused(graph: Any, inputs: Any) -> Any:
    raise AssertionError("compiled while it is measured")


WAYS = ("compiled", "distributed", "both", "parallel", "in place")


@pytest.mark.quick(2)
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", WAYS)
def test_wrapped_models_are_measured_as_they_are(how: str) -> None:
    want = abbe.diagnose(network(), TEXT, tokenizer=TOKENIZER, **SHORT)
    run = abbe.diagnose(wrapped(how, network()), TEXT, tokenizer=TOKENIZER, **SHORT)
    assert run.table.equals(want.table.with_columns(model=run.table["model"]))
    assert run.manifest["identity"] == want.manifest["identity"]


@pytest.mark.quick(2)
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("study", OPTIONS)
def test_every_study_unwraps(study: str) -> None:
    assert table(study, wrapped("distributed", network())).equals(table(study, network()))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["distributed", "both", "parallel"])
def test_tap_and_swap_unwrap(how: str) -> None:
    inner = network()
    outer = wrapped(how, inner)
    seen: list[int] = []
    with abbe.tap(outer) as tapped, torch.no_grad():
        assert tapped.network is inner
        tapped.listen(lambda call: seen.append(call.layer))
        inner(**tiny_models.text())
    assert seen == [0, 1]
    with abbe.swap(outer, "sparsemax") as swapped:
        assert swapped.network is inner


def test_a_loaded_model_that_was_wrapped() -> None:
    loaded = abbe.LoadedModel("tiny", nn.DataParallel(network()), TOKENIZER, "decoder", 64, "", "")
    assert abbe.diagnose(loaded, TEXT, **SHORT).table.height > 0


# Training mode


@pytest.mark.quick(2)
@pytest.mark.parametrize("study", OPTIONS)
def test_a_model_in_training_mode_is_measured_in_evaluation_mode_and_put_back(study: str) -> None:
    """Dropout would change everything; parts that the user froze stay in evaluation mode."""
    settings = {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}
    want = table(study, network(**settings))
    live: Any = network(**settings).train()
    live.transformer.h[1].eval()
    before = [module.training for module in live.modules()]
    assert len(set(before)) == 2
    assert table(study, live).equals(want)
    assert [module.training for module in live.modules()] == before


def test_the_modes_are_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    live: Any = network().train()
    live.lm_head.eval()
    before = [module.training for module in live.modules()]

    def fail(*given: Any, **more: Any) -> None:
        assert not any(module.training for module in live.modules())
        raise RuntimeError("broken wire")

    monkeypatch.setattr(live.transformer, "forward", fail)
    with pytest.raises(abbe.AbbeError, match="broken wire"):
        abbe.diagnose(live, TEXT, tokenizer=TOKENIZER, **SHORT)
    assert [module.training for module in live.modules()] == before


# Models and tokenizers that do not fit


def test_a_vocabulary_that_is_too_small_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = tiny_models.gpt2(vocab_size=100)
    monkeypatch.setattr(small, "forward", None)
    message = r"the text has token 122 \('z'\), but .* knows only 100 tokens, while its tokenizer has 256"
    for study in OPTIONS:
        with pytest.raises(abbe.AbbeError, match=message) as error:
            quick(study, small, "a lazy dog and a zebra " * 20, tokenizer=TOKENIZER)
        assert "\n" not in str(error.value)


def test_a_vocabulary_that_covers_the_text_is_enough() -> None:
    small = tiny_models.gpt2(vocab_size=100)
    assert abbe.diagnose(small, "A 1 B 2 C 3 D 4 " * 20, tokenizer=TOKENIZER, **SHORT).table.height > 0


def image_model() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=8
    )
    return transformers.ViTModel(config).eval()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (image_model, "ViTModel reads pixel_values, not tokens of a text"),
        (lambda: nn.Linear(3, 3), r"Linear fails on the token ids 3, 2, 1, 0 \(.*\): give run="),
        # tests/ecosystem has the real ones.
        (lambda: type("Bridge", (nn.Linear,), {"__module__": "transformer_lens.x"})(3, 3), "load the model anew"),
        (lambda: SimpleNamespace(_module=tiny_models.gpt2()), "SimpleNamespace.*: give its `_module`"),
        (lambda: tiny_models.gpt2(vocab_size=256).to("meta"), "are on the meta device: load them into memory first"),
    ],
)
def test_models_that_do_not_read_text(build: Callable[[], nn.Module], message: str) -> None:
    for study in OPTIONS:
        with pytest.raises(abbe.AbbeError, match=message if study == "diagnose" else None) as error:
            quick(study, build(), TEXT, tokenizer=TOKENIZER)
        assert "\n" not in str(error.value)
