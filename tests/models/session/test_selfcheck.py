"""The self-check must fail when anything that shapes the weights is captured wrongly, and must say how far off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import (
    FAMILIES,
    bert,
    builds,
    deepseek,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    padded,
    relative_error,
    t5,
    text_pair,
    tokens,
)
from torch import Tensor

from abbe import AbbeError
from abbe.models import AttentionCall, checked_logits, self_check_tolerance, swap, tap

pytestmark = pytest.mark.usefixtures("no_grad")


Break = Callable[[AttentionCall], AttentionCall]


def without(*names: str) -> Break:
    return lambda call: replace(call, **dict.fromkeys(names))


BROKEN: dict[str, tuple[Any, Break]] = {
    "scale": (gpt2, lambda call: replace(call, scale=1.1 * call.scale)),
    "scale of an unscaled model": (t5, lambda call: replace(call, scale=8**-0.5)),
    "causality": (llama, lambda call: replace(call, causal=False)),
    "causality of an encoder": (bert, lambda call: replace(call, causal=True)),
    "window": (mistral, lambda call: replace(call, mask=None, causal=True)),
    "window of capped scores": (gemma2, lambda call: replace(call, mask=None, causal=True)),
    "soft cap": (gemma2, without("softcap")),
    "sink": (gpt_oss, without("sink")),
    "position bias": (t5, without("position_bias")),
    "order of the grouped heads": (llama, lambda call: replace(call, key=call.key.flip(1), value=call.value.flip(1))),
    "keys before the rotation": (llama, lambda call: replace(call, key=call.key.roll(1, -1))),
    "one head": (gpt2, lambda call: replace(call, query=call.query * torch.tensor([1, 1, 1, 0.9])[:, None, None])),
    "one layer": (gpt2, lambda call: replace(call, scale=0.9 * call.scale) if call.layer else call),
    # Its last token sees all keys, and would find nothing.
    "causality of one layer": (lambda: llama(num_hidden_layers=1), lambda call: replace(call, causal=False)),
    "half precision": (lambda: llama().to(torch.bfloat16), lambda call: replace(call, causal=False)),
}


def capture(patch: pytest.MonkeyPatch, spoil: Break) -> None:
    """The tap's proof reads other calls than the model makes."""
    honest = AttentionCall.weights
    patch.setattr(AttentionCall, "weights", lambda call, queries: honest(spoil(call), queries))


def plain(network: Any) -> Any:
    return network


def few_logits(network: Any) -> Any:
    """The model seems to have so large a vocabulary that logits of the last token alone are made, if it can choose."""
    network.get_output_embeddings = lambda: SimpleNamespace(weight=torch.empty(1 << 22, 0))
    return network


ALL_OR_FEW = pytest.mark.parametrize("logits", [plain, few_logits])


@ALL_OR_FEW
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_capture_fails(name: str, logits: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    build, spoil = BROKEN[name]
    network, inputs = logits(build()), text_pair() if build is t5 else {"input_ids": tokens()}
    with tap(network) as t:
        assert t.check(**inputs) < (0.2 if name == "half precision" else 1e-4)
        capture(monkeypatch, spoil)
        with pytest.raises(AbbeError, match=r"^self-check failed: .* nothing was measured$"):
            t.check(**inputs)
    assert t.error is not None
    assert t.error > 0.01


@ALL_OR_FEW
# On the right, no token that counts sees the padding of a causal model.
@pytest.mark.parametrize(("side", "causal"), [("left", False), ("left", True), ("right", False)])
def test_padding_that_is_lost_fails(side: str, causal: bool, logits: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    network, kept = logits(llama()), padded(tokens(), side, 5)
    with tap(network) as t:
        assert t.check(input_ids=tokens(), attention_mask=kept) < 1e-5
        capture(monkeypatch, lambda call: replace(call, mask=None, causal=causal))
        with pytest.raises(AbbeError, match="self-check failed"):
            t.check(input_ids=tokens(), attention_mask=kept)


@ALL_OR_FEW
def test_padding_itself_is_not_compared(logits: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, honest = padded(tokens(), "right"), AttentionCall.weights
    wrong = 1 + 9 * (kept == 0)[:, None, :, None]
    monkeypatch.setattr(AttentionCall, "weights", lambda call, rows: honest(call, rows) * wrong[:, :, rows])
    with tap(logits(llama())) as t:
        assert t.check(input_ids=tokens(), attention_mask=kept) < 1e-5


def test_what_is_made_and_compared_with_few_logits() -> None:
    """Logits of one token, and a head that is broken is still found."""
    network, inputs, shapes = few_logits(llama()), {"input_ids": tokens()}, []
    network.lm_head.register_forward_hook(lambda head, args, logits: shapes.append(tuple(logits.shape)))
    with tap(network) as t:
        t.check(**inputs)
        assert shapes == [(2, 1, 61)] * 4  # plain and captured, without and with padding
        network.lm_head.weight[0] = math.nan
        with pytest.raises(AbbeError, match="the model's own output holds NaN"):
            t.check(**inputs)
    assert checked_logits(llama(), 19) == 19 * 61
    assert checked_logits(network, 19) == 2 * (1 << 22) + 19 * 32
    assert checked_logits(bert(), 19) == 0


def test_a_swap_is_checked_with_few_logits() -> None:
    with swap(few_logits(gemma2()), "sparsemax") as handle:
        assert 0 < handle.check(input_ids=tokens()) < 1e-5


@builds(llama, bert, t5)
def test_padding_is_tried_though_the_text_has_none(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose masks are lost: without padding none of them shows it."""
    network, inputs = build(), text_pair() if build is t5 else {"input_ids": tokens()}
    heard: list[Any] = []

    def lost(call: AttentionCall) -> AttentionCall:
        heard.append(call.query.shape[:3:2])
        return call if call.mask is None else replace(call, mask=None, causal=build is llama)

    capture(monkeypatch, lost)
    with tap(network) as t:
        with pytest.raises(AbbeError, match=rf"^self-check failed: .* {type(network).__name__} with padding by"):
            t.check(**inputs)
        kept = padded(inputs["input_ids"], "left", 3)
        with pytest.raises(AbbeError, match="with padding"):
            t.check(**inputs, attention_mask=torch.ones_like(kept), use_cache=False)
        with pytest.raises(AbbeError, match=rf"{type(network).__name__} by"):  # padded already
            t.check(**inputs, attention_mask=kept)
    assert set(heard) <= {(2, 19), (2, 11), (2, 16)}


def test_a_model_that_cannot_be_padded_is_checked_without() -> None:
    network, given = gpt2(), []
    plain = network.transformer.forward

    def fussy(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        given.append(attention_mask)
        if attention_mask is not None:
            raise ValueError("no padding here")
        return plain(*args, **kwargs)

    network.transformer.forward = fussy
    with tap(network) as t:
        assert t.check(input_ids=tokens()) < 1e-5
    assert sum(mask is not None for mask in given) == 1


def test_padding_of_a_decoder_is_left_out_of_the_comparison() -> None:
    """A query that sees no key gets the mean of all values from some kernels, and zeros from abbe."""
    with tap(t5()) as t:
        kept = padded(text_pair()["decoder_input_ids"], "left", 3)
        assert t.check(**text_pair(), decoder_attention_mask=kept) < 1e-5


def test_the_message_says_how_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    network = gpt2()
    capture(monkeypatch, lambda call: replace(call, scale=2 * call.scale))
    with pytest.raises(AbbeError) as caught, tap(network) as t:
        t.check(input_ids=tokens())
    assert str(caught.value) == (
        "self-check failed: attention rebuilt from the tap changes the output of GPT2LMHeadModel by "
        f"{t.error:.2g} of its standard deviation (allowed 0.001); nothing was measured"
    )


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_nan_activations_name_the_layer(part: str) -> None:
    network = llama()
    getattr(network.model.layers[1].self_attn, f"{part}_proj").weight[0, 0] = math.nan
    word = {"q": "query", "k": "key", "v": "value"}[part]
    expected = rf"^model\.layers\.1\.self_attn \(layer 1\): its {word} states hold NaN or infinities"
    with tap(network) as t:
        with pytest.raises(AbbeError, match=expected):
            t.check(input_ids=tokens())
        heard: list[int] = []
        t.listen(lambda call: heard.append(call.layer))
        with pytest.raises(AbbeError, match=expected):
            network(input_ids=tokens())
        assert heard == [0]


def test_training_mode_and_caches_are_refused() -> None:
    network = llama()
    with tap(network) as t:
        cache = network(input_ids=tokens()).past_key_values
        with pytest.raises(AbbeError, match="needs inputs without past_key_values"):
            t.check(input_ids=tokens(), past_key_values=cache)
        network.train()
        with pytest.raises(AbbeError, match=r"in training mode.*call \.eval\(\) first"):
            t.check(input_ids=tokens())
        network.eval()
    with pytest.raises(AbbeError, match="the tap is not open"):
        t.check(input_ids=tokens())


HALVES = [(name, dtype) for name in FAMILIES for dtype in (torch.float16, torch.bfloat16, torch.float32)]
# In float64 the eager softmax and the experts of some families stay in float32.
DOUBLES = [(name, torch.float64) for name in ("gpt2", "gpt-neox", "llama", "mistral", "olmo", "opt", "bert")]


@pytest.mark.parametrize(("name", "dtype"), HALVES + DOUBLES, ids=str)
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    network, rounding = FAMILIES[name].build().to(dtype), torch.finfo(dtype).eps
    with tap(network) as t:
        error = t.check(**FAMILIES[name].inputs())
        assert 0 <= error < (1e-5 if dtype == torch.float32 else 20 * rounding)
        assert t.error == error


def test_tolerance_grows_with_rounding() -> None:
    assert self_check_tolerance(torch.float64) == self_check_tolerance(torch.float32) == 1e-3
    assert 1e-3 < self_check_tolerance(torch.float16) < self_check_tolerance(torch.bfloat16) < 0.5


def test_the_error_is_the_largest_difference_over_the_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the logits that the model makes plainly, for a text and with padding, and from the capture."""
    network, outputs = llama(), []
    network.lm_head.register_forward_hook(lambda head, args, logits: outputs.append(logits.clone()))
    capture(monkeypatch, lambda call: replace(call, scale=(1 + 1e-4) * call.scale))
    with tap(network) as t:
        error = t.check(input_ids=tokens())
    first, padded, second, captured = outputs
    kept = torch.ones(padded.shape[:2])
    kept[0, :4] = 0
    errors = relative_error(first, second), relative_error(padded, captured, kept)
    assert error == pytest.approx(max(errors), rel=1e-6)
    assert min(errors) > 1e-5


@pytest.mark.parametrize(
    ("at", "number", "message"),
    [
        (range(4), -math.inf, ""),  # an entry that the model hides must stay hidden
        (range(2), -math.inf, "by inf of its standard deviation"),
        (range(2, 4), -math.inf, "by inf of its standard deviation"),
        (range(2, 4), math.nan, "by inf of its standard deviation"),
        (range(2), math.nan, "the model's own output holds NaN or no finite number"),
    ],
)
def test_logits_that_are_not_finite(at: range, number: float, message: str) -> None:
    """In the plain passes, the first two, in those from the capture, or in all."""
    network, passes = llama(), []

    def spoil(head: Any, args: Any, logits: Tensor) -> Tensor:
        passes.append(len(passes))
        return logits.index_fill(2, torch.tensor([7]), number) if passes[-1] in at else logits

    network.lm_head.register_forward_hook(spoil)
    with tap(network) as t:
        if not message:
            assert t.check(input_ids=tokens()) < 1e-5
            return
        with pytest.raises(AbbeError, match=message):
            t.check(input_ids=tokens())


def test_a_check_that_would_prove_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusals these broken captures would be certified with an error of 0."""
    network = llama()
    capture(monkeypatch, lambda call: replace(call, scale=5.0, causal=False))
    with tap(network) as t:
        with pytest.raises(AbbeError, match="check needs a text of at least 2 tokens"):
            t.check(input_ids=tokens(1))
        network.lm_head.weight.zero_()
        with pytest.raises(AbbeError, match="one number everywhere, from which the self-check can prove nothing"):
            t.check(input_ids=tokens())
        with pytest.raises(AbbeError, match="check needs a text of at least 2 tokens"):  # also after a longer one
            t.check(input_ids=tokens(1))
        assert t.error is None


def test_values_whose_sum_overflows_are_finite() -> None:
    network, heard = llama(attention_bias=True, num_hidden_layers=1), []
    network.model.layers[0].self_attn.v_proj.bias.fill_(3e38)
    with tap(network) as t:
        t.listen(lambda call: heard.append(float(call.value.sum())))
        network(input_ids=tokens())
    assert heard == [math.inf]


def test_a_value_width_of_its_own() -> None:
    """Queries and keys of width 12 and values of width 10, as in multi-head latent attention."""
    network = deepseek(qk_nope_head_dim=4, v_head_dim=10, num_key_value_heads=4)
    calls: list[AttentionCall] = []
    with tap(network) as t:
        assert 0 < t.check(input_ids=tokens()) < 1e-5
        t.listen(calls.append)
        network(input_ids=tokens())
    assert all((call.key.shape[-1], call.value.shape[-1]) == (12, 10) for call in calls)
    assert all(call.value_to_output().shape == (4, 10, 32) for call in calls)


def test_outputs_that_are_tuples_or_nothing_known() -> None:
    for network in (llama(), bert()):
        with tap(network) as t:
            assert 0 < t.check(input_ids=tokens(), return_dict=False) < 1e-5
    network.forward = lambda **_: "text"
    with tap(network) as t, pytest.raises(AbbeError, match="neither logits nor hidden states in a str"):
        t.check(input_ids=tokens())
