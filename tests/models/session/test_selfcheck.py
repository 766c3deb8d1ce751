"""The self-check must fail when anything that shapes the weights is captured wrongly, and must say how far off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from inside import check_finite, relative_error
from inside import models_tap as _tap
from inside import session_selfcheck as _selfcheck
from tiny_models import (
    FAMILIES,
    SMALL,
    bert,
    builds,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    make,
    mistral,
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


@pytest.fixture
def few_logits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that can choose make the logits of the last token only, as with a large vocabulary."""
    if getattr(request, "param", True):
        monkeypatch.setattr(_selfcheck, "MOST_LOGITS", 100)


ALL_OR_FEW = pytest.mark.parametrize("few_logits", [False, True], ids=["all logits", "few logits"], indirect=True)


@ALL_OR_FEW
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_capture_fails(name: str, few_logits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    build, spoil = BROKEN[name]
    network, inputs = build(), text_pair() if build is t5 else {"input_ids": tokens()}
    honest = _tap.own_attention
    with tap(network) as t:
        assert t.check(**inputs) < (0.2 if name == "half precision" else 1e-4)
        monkeypatch.setattr(_tap, "own_attention", lambda call: honest(spoil(call)))
        with pytest.raises(AbbeError, match=r"^self-check failed: .* nothing was measured$"):
            t.check(**inputs)
    assert t.error is not None
    assert t.error > 0.01


@ALL_OR_FEW
# On the right, no token that counts sees the padding of a causal model.
@pytest.mark.parametrize(("side", "causal"), [("left", False), ("left", True), ("right", False)])
def test_padding_that_is_lost_fails(side: str, causal: bool, few_logits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    network, kept = llama(), torch.ones(2, 19, dtype=torch.long)
    kept[0, :5] = 0
    kept = kept if side == "left" else kept.flip(1)
    with tap(network) as t:
        assert t.check(input_ids=tokens(), attention_mask=kept) < 1e-5
        honest = _tap.own_attention
        monkeypatch.setattr(_tap, "own_attention", lambda call: honest(replace(call, mask=None, causal=causal)))
        with pytest.raises(AbbeError, match="self-check failed"):
            t.check(input_ids=tokens(), attention_mask=kept)


@ALL_OR_FEW
def test_padding_itself_is_not_compared(few_logits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, honest = torch.ones_like(tokens()), _tap.own_attention
    kept[0, -4:] = 0
    monkeypatch.setattr(_tap, "own_attention", lambda call: honest(call) + 9 * (kept == 0)[:, :, None, None])
    with tap(llama()) as t:
        assert t.check(input_ids=tokens(), attention_mask=kept) < 1e-5


@pytest.mark.usefixtures("few_logits")
def test_what_is_made_and_compared_with_few_logits() -> None:
    """Logits of one token, and a head that is broken is still found."""
    network, inputs, shapes = llama(), {"input_ids": tokens()}, []
    network.lm_head.register_forward_hook(lambda head, args, logits: shapes.append(tuple(logits.shape)))
    with tap(network) as t:
        t.check(**inputs)
        assert shapes == [(2, 1, 61)] * 4  # plain and captured, without and with padding
        network.lm_head.weight[0] = math.nan
        with pytest.raises(AbbeError, match="the model's own output holds NaN"):
            t.check(**inputs)
    assert checked_logits(network, 19) == 61 + 19 * 32
    assert checked_logits(bert(), 19) == 0


@pytest.mark.usefixtures("few_logits")
def test_a_swap_is_checked_with_few_logits() -> None:
    network = gemma2()
    with swap(network, "sparsemax") as handle:
        assert 0 < handle.check(input_ids=tokens()) < 1e-5


@builds(llama, bert, t5)
def test_padding_is_tried_though_the_text_has_none(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose masks are lost: without padding none of them shows it."""
    network, inputs = build(), text_pair() if build is t5 else {"input_ids": tokens()}
    honest, heard = _tap.own_attention, []

    def lost(call: AttentionCall) -> Tensor:
        heard.append(call.query.shape[:3:2])
        return honest(call if call.mask is None else replace(call, mask=None, causal=build is llama))

    monkeypatch.setattr(_tap, "own_attention", lost)
    with tap(network) as t:
        with pytest.raises(AbbeError, match=rf"^self-check failed: .* {type(network).__name__} with padding by"):
            t.check(**inputs)
        kept = torch.ones_like(inputs["input_ids"])
        with pytest.raises(AbbeError, match="with padding"):
            t.check(**inputs, attention_mask=kept, use_cache=False)
        kept[0, :3] = 0
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
    network, kept = t5(), torch.ones(2, 11, dtype=torch.long)
    kept[0, :3] = 0
    with tap(network) as t:
        assert t.check(**text_pair(), decoder_attention_mask=kept) < 1e-5


def test_the_message_says_how_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    network = gpt2()
    honest = _tap.own_attention
    monkeypatch.setattr(_tap, "own_attention", lambda call: honest(replace(call, scale=2 * call.scale)))
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


def test_relative_error_by_hand() -> None:
    plain = torch.tensor([[[1.0, -1.0], [1.0, -1.0]]])  # standard deviation 1
    own = torch.tensor([[[1.0, -1.25], [3.0, -1.0]]])
    assert relative_error(plain, own) == 2.0
    assert relative_error(plain, own, torch.tensor([[1, 0]])) == 0.25
    assert relative_error(10 * plain, 10 * own) == 2.0
    assert relative_error(plain, plain) == 0.0
    assert relative_error(plain, torch.full_like(plain, math.nan)) == math.inf
    plain = torch.tensor([[[1.0, -1.0, -math.inf]]])  # an entry that the model hides must stay hidden
    assert relative_error(plain, plain + 0) == 0.0
    assert relative_error(plain, torch.tensor([[[1.0, -1.0, 5.0]]])) == math.inf
    assert relative_error(plain, torch.tensor([[[1.0, -math.inf, -math.inf]]])) == math.inf
    with pytest.raises(AbbeError, match="holds NaN or no finite number"):
        relative_error(torch.tensor([[[1.0, math.nan]]]), torch.ones(1, 1, 2))


def test_a_check_that_would_prove_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the refusals these broken captures would be certified with an error of 0."""
    network, honest = llama(), _tap.own_attention
    monkeypatch.setattr(_tap, "own_attention", lambda call: honest(replace(call, scale=5.0, causal=False)))
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
    large = torch.full((1, 1, 2, 2), 3e38)
    check_finite(AttentionCall(0, "layer", "self", large, large, large, 1.0))
    with pytest.raises(AbbeError, match="its value states"):
        check_finite(AttentionCall(0, "layer", "self", large, large, torch.tensor([[[[1.0, -math.inf]]]]), 1.0))


def test_a_value_width_of_its_own() -> None:
    """Queries and keys of width 12 and values of width 10, as in multi-head latent attention."""
    latent = {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 10,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
        "num_key_value_heads": 4,
    }  # fmt: skip
    network = make("DeepseekV3ForCausalLM", "DeepseekV3Config", **(SMALL | latent))
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
