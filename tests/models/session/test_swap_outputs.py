"""What a swapped model computes, for every family, against a dense second implementation of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models as tiny
import torch
from inside import normalizers_row_map as _row_map
from swap_reference import reference, reference_output
from test_tap_capture import listen as tapped
from tiny_models import FAMILIES, LENGTH, gpt_oss, llama, t5, text_pair, tokens
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, StaticCache

from abbe import AbbeError, normalizer, swap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")
SPECS = ("entmax:alpha=1.5", "sparsemax", "topk:k=3", "entmax:alpha=1.3", "sigmoid", "sink:b=1", "ssmax:s=0.5")


def swapped_output(network: Any, what: Any, **inputs: Any) -> torch.Tensor:
    with swap(network, what):
        return tiny.main_output(network(**inputs))


@pytest.mark.quick(31)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_every_family_with_other_normalizers(name: str, spec: str) -> None:
    network, inputs = tiny.FAMILIES[name].build(), tiny.FAMILIES[name].inputs()
    plain = tiny.main_output(network(**inputs))
    output, wanted = swapped_output(network, spec, **inputs), reference_output(network, spec, **inputs)
    assert tiny.relative_error(wanted, output) < 2e-5
    assert tiny.relative_error(plain, output) > 1e-2  # it does something


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_softmax_gives_the_models_own_output(name: str, implementation: str) -> None:
    network, inputs = tiny.with_attention(tiny.FAMILIES[name].build(), implementation), tiny.FAMILIES[name].inputs()
    plain = tiny.main_output(network(**inputs))
    assert tiny.relative_error(plain, swapped_output(network, "softmax", **inputs)) < 1e-5


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_order_counts_in_stick_breaking(name: str) -> None:
    network, inputs = tiny.FAMILIES[name].build(), tiny.FAMILIES[name].inputs()
    output, wanted = (run(network, "stick-breaking", **inputs) for run in (swapped_output, reference_output))
    assert tiny.relative_error(wanted, output) < 2e-5


RULES = {"layers.0.heads.0,3": "entmax:alpha=1.5", "*.heads.1": "topk:k=2", "layers.1.heads.2-3": "sparsemax"}
CHOSEN = {
    **{(0, head): "entmax:alpha=1.5" for head in (0, 3)},
    **{(layer, 1): "topk:k=2" for layer in range(6)},
    **{(1, head): "sparsemax" for head in (2, 3)},
}


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_heads_with_normalizers_of_their_own(name: str, implementation: str) -> None:
    network, inputs = tiny.with_attention(tiny.FAMILIES[name].build(), implementation), tiny.FAMILIES[name].inputs()
    with swap(network, RULES) as swapped:
        numbers = {path: number for number, path in enumerate(swapped.layers)}
        output = tiny.main_output(network(**inputs))
    wanted = reference_output(network, lambda path, head: CHOSEN.get((numbers[path], head)), **inputs)
    assert tiny.relative_error(wanted, output) < 2e-5


@pytest.mark.parametrize("heads", ["0-2", "1", "1-2", "1-3", "0,2", "2-3"])
def test_heads_that_share_keys_with_others(heads: str) -> None:
    """Two query heads have one key head: a group may take both, one, or unequal numbers."""
    network, chosen = tiny.llama(), range(int(heads[0]), int(heads[-1]) + 1, 2 if "," in heads else 1)
    output = swapped_output(network, {f"*.heads.{heads}": "sparsemax"}, input_ids=tiny.tokens())
    wanted = reference_output(
        network, lambda path, head: "sparsemax" if head in chosen else "softmax", input_ids=tiny.tokens()
    )
    assert tiny.relative_error(wanted, output) < 2e-5


def test_heads_that_nobody_names_stay_exactly_as_they_were() -> None:
    network = tiny.llama()
    heads: dict[str, torch.Tensor] = {}
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, args, number=number: heads.__setitem__(number, args[0].unflatten(-1, (4, -1)).clone())
        )
        for number, layer in enumerate(network.model.layers)
    ]
    network(input_ids=tiny.tokens())
    plain = dict(heads)
    swapped_output(network, {"layers.0.heads.1": "sparsemax"}, input_ids=tiny.tokens())
    assert torch.equal(heads[0][:, :, [0, 2, 3]], plain[0][:, :, [0, 2, 3]])
    assert not torch.allclose(heads[0][:, :, 1], plain[0][:, :, 1])
    for hook in hooks:
        hook.remove()
    plain_output = network(input_ids=tiny.tokens()).logits
    keep_all = swapped_output(network, {"layers.1.heads.0": normalizer("softmax")}, input_ids=tiny.tokens())
    assert tiny.relative_error(plain_output, keep_all) < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "build",
    [tiny.gpt2, tiny.llama, tiny.mistral, tiny.gemma2, tiny.gpt_oss, tiny.bert],
    ids=lambda build: build.__name__,
)
def test_padding_has_no_effect(build: Any, side: str) -> None:
    network, ids = build(), tiny.tokens()
    kept = tiny.padded(ids, side)
    other = torch.where(kept.bool(), ids, 7)
    first, second = (
        swapped_output(network, "entmax:alpha=1.5", input_ids=x, attention_mask=kept) for x in (ids, other)
    )
    torch.testing.assert_close(first[kept.bool()], second[kept.bool()], atol=2e-6, rtol=0)
    wanted = reference_output(network, "entmax:alpha=1.5", input_ids=ids, attention_mask=kept)
    assert tiny.relative_error(wanted, first, kept) < 2e-5


def test_padding_of_an_encoder_and_a_module_that_is_called_three_times() -> None:
    inputs = tiny.text_pair()
    inputs["attention_mask"] = tiny.padded(inputs["input_ids"].flip(0), "right", 5).flip(0)
    for network, given in ((tiny.t5(), inputs), (tiny.albert(), tiny.text())):
        output, wanted = (run(network, "sparsemax", **given) for run in (swapped_output, reference_output))
        assert tiny.relative_error(wanted, output) < 2e-5


@pytest.mark.parametrize("what", ["entmax:alpha=1.5", RULES], ids=["one", "groups"])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
@tiny.builds(tiny.gpt2, tiny.llama, tiny.mistral, tiny.gemma2, tiny.gpt_oss)
def test_steps_with_a_cache_give_what_one_pass_gives(build: Any, cache: Any, what: Any) -> None:
    network, ids = build(), tiny.tokens()[:1]
    with swap(network, what):
        whole = network(input_ids=ids).logits
        settings = {"max_cache_len": 32} if cache is StaticCache else {}
        kept, done = cache(config=network.config, **settings), 0
        for step in (tiny.LENGTH - 8, 1, 1, 5, 1):
            logits = network(input_ids=ids[:, done : done + step], past_key_values=kept).logits
            torch.testing.assert_close(logits, whole[:, done : done + step], atol=3e-5, rtol=0)
            done += step
    assert done == tiny.LENGTH


def test_a_swapped_model_uses_kernels_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two layers have 2592 logits."""
    seen, run = [], _row_map.run_forward
    monkeypatch.setattr(_row_map, "run_forward", lambda *args: (seen.append(args[2]), run(*args))[1])
    last_step(tiny.llama(), "entmax:alpha=1.5")
    normalizer("sparsemax")(torch.randn(4, 1024))  # outside of the model all is as before
    assert seen == ["entmax15"] * 2


def last_step(network: Any, spec: str, texts: int = 2) -> None:
    """The last token of texts in a cache gives what the whole text gives."""
    ids, cache = tiny.tokens(batch=texts), DynamicCache(config=network.config)
    with swap(network, spec):
        network(input_ids=ids[:, :-1], past_key_values=cache)
        logits = network(input_ids=ids[:, -1:], past_key_values=cache).logits
    wanted = reference_output(network, spec, input_ids=ids)
    torch.testing.assert_close(logits[:, 0], wanted[:, -1], atol=5e-5, rtol=0)


@pytest.mark.parametrize(("texts", "entered"), [(26, 0), (27, 2)])
def test_short_texts_do_not_wait_for_a_kernel(texts: int, entered: int, steps: list[str]) -> None:
    """They have fewer than 2048 logits, of four heads and 19 keys."""
    last_step(tiny.llama(), "entmax:alpha=1.5", texts=texts)
    assert len(steps) == entered


@pytest.mark.usefixtures("fused")
@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "ssmax:s=0.5", "scaled:of=sparsemax,t=-0.5", "topk:k=3"])
@tiny.builds(tiny.gpt2, tiny.llama)
def test_a_model_step_by_step(build: Any, spec: str, steps: list[str]) -> None:
    network, ids = build(), tiny.tokens()
    cache = DynamicCache(config=network.config)
    wanted = reference_output(network, spec, input_ids=ids)
    with swap(network, spec):
        network(input_ids=ids[:, :4], past_key_values=cache)
        assert not steps
        for place in range(4, ids.shape[1]):
            logits = network(input_ids=ids[:, place : place + 1], past_key_values=cache).logits
            torch.testing.assert_close(logits[:, 0], wanted[:, place], atol=5e-5, rtol=0)
    assert steps


@pytest.mark.usefixtures("fused")
@tiny.builds(tiny.mistral, tiny.gemma2, tiny.gpt_oss)
def test_a_model_with_windows_caps_or_sinks_takes_the_longer_way(build: Any, steps: list[str]) -> None:
    last_step(build(), "entmax:alpha=1.5")
    assert not steps


@pytest.mark.quick(8)
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", [*tiny.CAUSAL, "t5"])
def test_generation_with_softmax_is_the_models_own(name: str, cache: str | None) -> None:
    network = tiny.FAMILIES[name].build()
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    ids = tiny.tokens()[:1]
    wanted = network.generate(input_ids=ids, **settings)
    with swap(network, "softmax"):
        assert torch.equal(network.generate(input_ids=ids, **settings), wanted)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", tiny.CAUSAL)
@pytest.mark.usefixtures("fused")
def test_generation_with_entmax_is_that_without_a_cache(name: str, steps: list[str]) -> None:
    network, ids = tiny.FAMILIES[name].build(), tiny.tokens()[:1]
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    with swap(network, "entmax:alpha=1.5"):
        generated = network.generate(input_ids=ids, **settings)
        assert steps or name not in ("gpt2", "llama")
        static = network.generate(input_ids=ids, cache_implementation="static", **settings)
    with reference(network, lambda path, head: "entmax:alpha=1.5") as twin:
        wanted = twin.generate(input_ids=ids, use_cache=False, **settings)
    assert torch.equal(generated, wanted)
    assert torch.equal(static, wanted)


def test_generation_of_texts_of_unequal_length() -> None:
    network, ids = tiny.llama(), tiny.tokens()
    kept = tiny.padded(ids, "left", 6)
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with swap(network, "sparsemax"):
        together = network.generate(input_ids=ids, attention_mask=kept, **settings)
        alone = network.generate(input_ids=ids[:1, 6:], **settings)
    assert torch.equal(together[0, 6:], alone[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    network = tiny.llama().to(dtype)
    cache = DynamicCache(config=network.config)
    with swap(network, "entmax:alpha=1.5") as swapped:
        swapped.check(input_ids=tiny.tokens())
        whole = network(input_ids=tiny.tokens()).logits
        network(input_ids=tiny.tokens()[:, :-1], past_key_values=cache)
        last = network(input_ids=tiny.tokens()[:, -1:], past_key_values=cache).logits
    assert whole.dtype == dtype
    wanted = reference_output(network, "entmax:alpha=1.5", input_ids=tiny.tokens())
    error = {torch.float64: 1e-6, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    assert tiny.relative_error(wanted, whole) < error
    assert tiny.relative_error(whole[:, -1:], last) < error


def test_a_floating_mask_of_the_user() -> None:
    network = tiny.llama()
    mask = torch.where(torch.ones(tiny.LENGTH, tiny.LENGTH).tril().bool(), 0.0, -1e9).expand(2, 1, -1, -1)
    output = swapped_output(network, "entmax:alpha=1.5", input_ids=tiny.tokens(), attention_mask=mask)
    wanted = swapped_output(network, "entmax:alpha=1.5", input_ids=tiny.tokens())
    assert tiny.relative_error(wanted, output) < 1e-5


def test_a_model_that_does_not_keep_its_word_is_refused() -> None:
    network = tiny.llama()
    with swap(network, "stick-breaking"):
        network.model.layers[1].self_attn.is_causal = False
        with pytest.raises(AbbeError, match=r"stick-breaking needs keys in causal order, but .*layers\.1.* shows all"):
            network(input_ids=tiny.tokens())
    network = tiny.gpt2()
    network.transformer.h[0].attn.num_heads = 3
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=r"says that it has 3 heads, but attends with 4"):
        network(input_ids=tiny.tokens())


# -- What listeners hear, and what the check proves -------------------------------------------------------------------


GROUPS = {"*.heads.0,3": "entmax:alpha=1.5", "layers.1.heads.1": "topk:k=2"}
Heard = list[tuple[AttentionCall, Tensor]]


def heard(network: Any, what: Any, check: bool = False, outputs: list[Tensor] | None = None, **inputs: Any) -> Heard:
    """Calls and the weights of all their queries; the outputs of the layers are added to `outputs`."""
    calls: Heard = []

    def listener(call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        calls.append((call, weights_of(torch.arange(call.query.shape[-2]))))

    with swap(network, what) as swapped, pytest.MonkeyPatch.context() as patch:
        if check:
            swapped.check(**inputs)
        if outputs is not None:
            wrap_attention(network, patch, lambda function, *args: outputs.append(function(*args)) or outputs[-1])
        swapped.listen(listener)
        network(**inputs)
    assert calls  # or every loop over them would pass
    return calls


def wrap_attention(network: Any, patch: pytest.MonkeyPatch, wrapper: Callable[..., Tensor]) -> None:
    """Put a function between the model and its attention function."""
    names, name = AttentionInterface._global_mapping, network.config._attn_implementation
    function = names[name]

    def wrapped(module: Any, *states: Any, **keywords: Any) -> tuple[Tensor, None]:
        return wrapper(lambda *given: function(module, *given, **keywords)[0], *states), None

    patch.setitem(names, name, wrapped)


@pytest.mark.parametrize("what", ["sparsemax", GROUPS], ids=["one", "groups"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_weights_are_those_that_the_layer_uses(name: str, what: Any) -> None:
    outputs: list[Tensor] = []
    calls = heard(FAMILIES[name].build(), what, outputs=outputs, **FAMILIES[name].inputs())
    assert len(calls) == len(outputs) > 1
    for (call, weights), output in zip(calls, outputs, strict=True):
        assert weights.shape == (4, call.query.shape[-2], call.key.shape[-2])
        values = call.value[0].repeat_interleave(4 // call.value.shape[1], 0)
        torch.testing.assert_close((weights @ values).transpose(0, 1), output[0], atol=2e-5, rtol=0)


def test_each_group_has_its_own_weights() -> None:
    for call, weights in heard(gpt_oss(), GROUPS, input_ids=tokens()):
        logits = call.logits(torch.arange(LENGTH))[0]
        logits = torch.cat([call.sink[:, None, None].expand(4, LENGTH, 1), logits], -1)
        other = "topk:k=2" if call.layer == 1 else "softmax"
        for head, spec in enumerate(("entmax:alpha=1.5", other, "softmax", "entmax:alpha=1.5")):
            wanted = normalizer(spec)(logits[head].double())[..., 1:]
            torch.testing.assert_close(weights[head].double(), wanted, atol=1e-5, rtol=0)


def test_calls_are_those_of_the_tap() -> None:
    network = t5()
    wanted, _ = tapped(network, text_pair())
    calls = heard(network, "softmax", check=True, **text_pair())
    for (call, _), other in zip(calls, wanted, strict=True):
        assert (call.layer, call.name, call.kind, call.causal) == (other.layer, other.name, other.kind, other.causal)
        assert call.projection is other.projection is not None
        torch.testing.assert_close(call.query, other.query, atol=1e-4, rtol=1e-4)


def test_some_queries_of_the_first_text() -> None:
    network, rows, weights = llama(), torch.tensor([3, 11]), []
    with swap(network, "sparsemax") as swapped:
        swapped.listen(lambda call, weights_of: weights.append(weights_of(rows)))
        network(input_ids=tokens())
        network(input_ids=tokens()[:1])
    for some, alone, (_, whole) in zip(
        weights[:2], weights[2:], heard(network, "sparsemax", input_ids=tokens()), strict=True
    ):
        torch.testing.assert_close(some, whole[:, rows])
        torch.testing.assert_close(some, alone)


@pytest.mark.parametrize("name", FAMILIES)
def test_check_finds_rounding_alone(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    with swap(network, "sparsemax") as swapped:
        assert swapped.error is None
        wanted = network(**inputs)[0]
        error = swapped.check(**inputs)
        assert 0 < error < 1e-5  # by another path than the model's own
        assert swapped.error == error
        assert torch.equal(network(**inputs)[0], wanted)


def test_check_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    network = llama()
    expected = "check failed: softmax swapped in changes the output of LlamaForCausalLM"
    with swap(network, "sparsemax") as swapped:
        wrap_attention(network, monkeypatch, lambda function, query, *rest: function(1.1 * query, *rest))
        with pytest.raises(AbbeError, match=expected):
            swapped.check(input_ids=tokens())
