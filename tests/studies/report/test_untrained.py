"""A model whose attention has not been learned is recognised, and a trained one is not."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import real
import tiny_models
import tiny_runs
import torch
import transformers
from synthetic_run import made_run

from abbe.models import LoadedModel, load, wrap
from abbe.models import windows as cut_windows
from abbe.runs import loss as losses
from abbe.studies import Report, Sample, report
from abbe.words.finding import NOT_LEARNED, NOTICE, Finding

QUICK: dict[str, Any] = tiny_runs.QUICK | {"windows": 2, "lengths": [16, 40], "temperatures": (1.0,)}
WIDTHS = {"gpt2": {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}}
CLASSES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
    "llama": ("LlamaForCausalLM", "LlamaConfig"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config"),  # normalised queries and keys: far from uniform
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "bert": ("BertModel", "BertConfig"),  # no loss: by its uniform attention alone
}


def untrained(family: str, seed: int) -> LoadedModel:
    """As transformers draws the weights."""
    kind, config = CLASSES[family]
    sizes = WIDTHS.get(family, tiny_models.SMALL if family in ("bert", "gpt-neox") else tiny_models.GROUPED)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "vocab_size": 256}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = getattr(transformers, kind)(getattr(transformers, config)(**(special | sizes))).eval()
    return wrap(network, tiny_models.byte_tokenizer(), f"untrained {family}")


def first_of(result: Report) -> Finding:
    return result.verdicts[0]


def is_recognised(result: Report) -> bool:
    """First among the verdicts, with its rule and numbers; nowhere is it advised to allow more."""
    first = first_of(result)
    if first.topic != NOT_LEARNED:
        assert result.learned
        return False
    assert first.sentence.startswith(NOTICE)
    assert first.rule.endswith(".")
    assert "allow more" not in " ".join(finding.sentence for finding in result.advice)
    assert not result.learned
    return True


@pytest.mark.quick(2)
@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", list(CLASSES))
def test_fresh_weights_of_every_family_are_recognised(family: str, seed: int) -> None:
    result = report(untrained(family, seed), tiny_runs.TEXT, **QUICK)
    assert is_recognised(result)
    numbers = first_of(result).numbers
    assert (numbers["loss of the next token, nats"] is None) == (family == "bert")
    if family != "bert":
        assert numbers["loss of guessing, nats"] == pytest.approx(math.log(256))


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_large_random_weights_are_recognised_by_their_loss(family: str) -> None:
    """Their attention is far from uniform, and no head's near the ceiling."""
    result = report(tiny_runs.model(family), tiny_runs.TEXT, **QUICK)
    assert is_recognised(result)
    numbers = first_of(result).numbers
    assert numbers["heads near the entropy ceiling"] < 0.9 * numbers["heads"]
    assert "predicted no better than by guessing" in first_of(result).sentence
    assert "entropy ceiling" not in first_of(result).sentence


@pytest.mark.slow
def test_the_embedded_model_is_trained_and_without_its_queries_it_is_not() -> None:
    options: dict[str, Any] = {"lengths": [64], "windows": 2, "queries": 8, "resamples": 20, "progress": False}
    model = load("embedded")
    trained = report(model, temperatures=(1.0,), **options)
    assert not is_recognised(trained)
    assert trained.sample is not None
    assert trained.sample.loss is not None
    assert trained.sample.guessing == pytest.approx(math.log(model.network.config.vocab_size))
    assert trained.sample.loss < 0.8 * trained.sample.guessing
    blind = copy.deepcopy(model.network)
    with torch.no_grad():
        for name, weight in blind.named_parameters():
            if "c_attn" in name:
                weight[..., : weight.shape[-1] // 3] = 0
    uniform = report(blind, temperatures=(1.0,), tokenizer=model.tokenizer, **options)
    assert is_recognised(uniform)
    assert "all 48 heads are within 5 % of the entropy ceiling at 64 tokens" in first_of(uniform).sentence.lower()


@pytest.mark.real
@pytest.mark.parametrize(("name", "text"), [("stories260K", "tinyshakespeare.txt"), ("stories15M", None)])
def test_trained_models_are_not_taken_for_untrained(name: str, text: str | None) -> None:
    """Also on a text of another kind than they were trained on."""
    options: dict[str, Any] = {"lengths": [256], "windows": 1, "queries": 8, "resamples": 20, "progress": False}
    given = None if text is None else real.shared_text(text)
    assert not is_recognised(report(real.shared_model(name), given, temperatures=(1.0,), **options))


UNIFORM = {"entropy": (5.9, 5.8, 5.95, 6.0, None)}
WINDOW = Sample(4, 0, ("a",) * 4, (1,), (3,), ())


def verdict(near: int, heads: int, loss: float | None = None) -> Finding | None:
    sample = None if loss is None else replace(WINDOW, loss=loss, guessing=10.0)
    first = Report.of(made_run([UNIFORM] * near + [{}] * (heads - near)), None, sample).verdicts[0]
    assert first.topic in (NOT_LEARNED, "dispersion")
    return first if first.topic == NOT_LEARNED else None


@pytest.mark.parametrize(
    ("near", "heads", "loss", "said"),
    [
        (9, 10, None, True),
        (8, 10, None, False),
        (10, 10, 3.0, True),  # uniform, whatever else has learned to predict
        (0, 10, 9.7, True),
        (0, 10, 9.69, False),
        (0, 10, 25.0, True),
        (8, 10, 9.69, False),
    ],
)
def test_the_rule(near: int, heads: int, loss: float | None, said: bool) -> None:
    assert (verdict(near, heads, loss) is not None) == said


def test_the_loss_of_a_large_vocabulary_is_that_of_the_last_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_runs.model("llama")
    (window,) = cut_windows(tiny_runs.TEXT, [40], 1, 0, tokenizer=model.tokenizer, context=model.context)
    whole = losses.next_token_losses(model, window.tokens)
    assert losses.loss_and_guessing(model, window) == pytest.approx((float(whole.mean()), math.log(256)))
    monkeypatch.setattr(
        losses, "_LOGITS_FOR_A_LOOK", 256 * 6
    )  # room for six positions, of which the last has no target
    assert losses.loss_and_guessing(model, window)[0] == pytest.approx(float(whole[-5:].mean()))
    assert losses.loss_and_guessing(tiny_runs.model("bert"), window) == (None, None)
    whole_network = model.network
    headless = wrap(whole_network.base_model, model.tokenizer, "headless")
    assert losses.loss_and_guessing(headless, window) == (None, None)
