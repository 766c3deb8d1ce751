"""What a swapped model computes, for every family, against a dense second implementation of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from inside import main_output, relative_error
from inside import normalizers_dispatch as _dispatch
from inside import normalizers_row_map as _row_map
from inside import swap_module as _swap
from swap_reference import reference, reference_output
from tiny_models import (
    CAUSAL,
    FAMILIES,
    LENGTH,
    albert,
    bert,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    padded,
    t5,
    text_pair,
    tokens,
    with_another_last_token,
    with_attention,
)
from transformers import DynamicCache, StaticCache

from abbe import AbbeError, normalizer, swap

pytestmark = pytest.mark.usefixtures("no_grad")
SPECS = ("entmax:alpha=1.5", "sparsemax", "topk:k=3", "entmax:alpha=1.3", "sigmoid", "sink:b=1", "ssmax:s=0.5")


def swapped_output(network: Any, what: Any, **inputs: Any) -> torch.Tensor:
    with swap(network, what):
        return main_output(network(**inputs))


@pytest.mark.quick(31)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_with_other_normalizers(name: str, spec: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    plain = main_output(network(**inputs))
    output, wanted = swapped_output(network, spec, **inputs), reference_output(network, spec, **inputs)
    assert relative_error(wanted, output) < 2e-5
    assert relative_error(plain, output) > 1e-2  # it does something


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_softmax_gives_the_models_own_output(name: str, implementation: str) -> None:
    network, inputs = with_attention(FAMILIES[name].build(), implementation), FAMILIES[name].inputs()
    plain = main_output(network(**inputs))
    assert relative_error(plain, swapped_output(network, "softmax", **inputs)) < 1e-5


@pytest.mark.parametrize("name", CAUSAL)
def test_order_counts_in_stick_breaking(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    output, wanted = (run(network, "stick-breaking", **inputs) for run in (swapped_output, reference_output))
    assert relative_error(wanted, output) < 2e-5


RULES = {"layers.0.heads.0,3": "entmax:alpha=1.5", "*.heads.1": "topk:k=2", "layers.1.heads.2-3": "sparsemax"}
CHOSEN = {
    **{(0, head): "entmax:alpha=1.5" for head in (0, 3)},
    **{(layer, 1): "topk:k=2" for layer in range(6)},
    **{(1, head): "sparsemax" for head in (2, 3)},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_with_normalizers_of_their_own(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    with swap(network, RULES) as swapped:
        numbers = {path: number for number, path in enumerate(swapped.layers)}
        output = main_output(network(**inputs))
    wanted = reference_output(network, lambda path, head: CHOSEN.get((numbers[path], head)), **inputs)
    assert relative_error(wanted, output) < 2e-5


@pytest.mark.parametrize("heads", ["0-2", "1", "1-2", "1-3", "0,2", "2-3"])
def test_heads_that_share_keys_with_others(heads: str) -> None:
    """Two query heads have one key head: a group may take both, one, or unequal numbers."""
    network, chosen = llama(), range(int(heads[0]), int(heads[-1]) + 1, 2 if "," in heads else 1)
    output = swapped_output(network, {f"*.heads.{heads}": "sparsemax"}, input_ids=tokens())
    wanted = reference_output(
        network, lambda path, head: "sparsemax" if head in chosen else "softmax", input_ids=tokens()
    )
    assert relative_error(wanted, output) < 2e-5


def test_heads_that_nobody_names_stay_exactly_as_they_were() -> None:
    network = llama()
    heads: dict[str, torch.Tensor] = {}
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, args, number=number: heads.__setitem__(number, args[0].unflatten(-1, (4, -1)).clone())
        )
        for number, layer in enumerate(network.model.layers)
    ]
    network(input_ids=tokens())
    plain = dict(heads)
    swapped_output(network, {"layers.0.heads.1": "sparsemax"}, input_ids=tokens())
    assert torch.equal(heads[0][:, :, [0, 2, 3]], plain[0][:, :, [0, 2, 3]])
    assert not torch.allclose(heads[0][:, :, 1], plain[0][:, :, 1])
    for hook in hooks:
        hook.remove()
    plain_output = network(input_ids=tokens()).logits
    keep_all = swapped_output(network, {"layers.1.heads.0": normalizer("softmax")}, input_ids=tokens())
    assert relative_error(plain_output, keep_all) < 1e-5


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "topk:k=4"])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_last_token_moves_no_earlier_output(name: str, spec: str, implementation: str) -> None:
    network = with_attention(FAMILIES[name].build(), implementation)
    ids, other = tokens(), with_another_last_token(tokens())
    first, second = (swapped_output(network, spec, input_ids=x) for x in (ids, other))
    assert not torch.equal(first[:, -1], second[:, -1])
    torch.testing.assert_close(first[:, :-1], second[:, :-1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("build", [gpt2, llama, mistral, gemma2, gpt_oss, bert], ids=lambda build: build.__name__)
def test_padding_has_no_effect(build: Any, side: str) -> None:
    network, ids = build(), tokens()
    kept = padded(ids, side)
    other = torch.where(kept.bool(), ids, 7)
    first, second = (
        swapped_output(network, "entmax:alpha=1.5", input_ids=x, attention_mask=kept) for x in (ids, other)
    )
    torch.testing.assert_close(first[kept.bool()], second[kept.bool()], atol=2e-6, rtol=0)
    wanted = reference_output(network, "entmax:alpha=1.5", input_ids=ids, attention_mask=kept)
    assert relative_error(wanted, first, kept) < 2e-5


def test_padding_of_an_encoder_is_hidden_from_its_decoder() -> None:
    network, inputs = t5(), text_pair()
    kept = torch.ones_like(inputs["input_ids"])
    kept[1, -5:] = 0
    inputs["attention_mask"] = kept
    output, wanted = (run(network, "sparsemax", **inputs) for run in (swapped_output, reference_output))
    assert relative_error(wanted, output) < 2e-5


@pytest.mark.parametrize("what", ["entmax:alpha=1.5", RULES], ids=["one", "groups"])
@pytest.mark.parametrize("cache", [DynamicCache, StaticCache])
@pytest.mark.parametrize("build", [gpt2, llama, mistral, gemma2, gpt_oss], ids=lambda build: build.__name__)
def test_steps_with_a_cache_give_what_one_pass_gives(build: Any, cache: Any, what: Any) -> None:
    network, ids = build(), tokens()[:1]
    with swap(network, what):
        whole = network(input_ids=ids).logits
        settings = {"max_cache_len": 32} if cache is StaticCache else {}
        kept, done = cache(config=network.config, **settings), 0
        for step in (LENGTH - 8, 1, 1, 5, 1):
            logits = network(input_ids=ids[:, done : done + step], past_key_values=kept).logits
            torch.testing.assert_close(logits, whole[:, done : done + step], atol=3e-5, rtol=0)
            done += step
    assert done == LENGTH


def test_steps_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """So short a text would else be left to the reference."""
    network, ids, seen = llama(), tokens(), []
    cache = DynamicCache(config=network.config)
    wanted = swapped_output(network, "entmax:alpha=1.5", input_ids=ids)
    run = _row_map.run_forward
    monkeypatch.setattr(_swap, "KERNELS_FROM", 1)
    for module in (_dispatch, _row_map):
        monkeypatch.setattr(module, "run_forward", lambda *args: (seen.append(args[2]), run(*args))[1])
    with swap(network, "entmax:alpha=1.5"):
        network(input_ids=ids[:, :-1], past_key_values=cache)
        logits = network(input_ids=ids[:, -1:], past_key_values=cache).logits
    normalizer("sparsemax")(torch.randn(4, 19))  # outside of the model all is as before
    assert seen == ["entmax15"] * 2
    torch.testing.assert_close(logits, wanted[:, -1:], atol=3e-5, rtol=0)


@pytest.mark.quick(8)
@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", [*CAUSAL, "t5"])
def test_generation_with_softmax_is_the_models_own(name: str, cache: str | None) -> None:
    network = FAMILIES[name].build()
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    ids = tokens()[:1]
    wanted = network.generate(input_ids=ids, **settings)
    with swap(network, "softmax"):
        assert torch.equal(network.generate(input_ids=ids, **settings), wanted)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_entmax_is_that_without_a_cache(name: str) -> None:
    network, ids = FAMILIES[name].build(), tokens()[:1]
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    with swap(network, "entmax:alpha=1.5"):
        generated = network.generate(input_ids=ids, **settings)
        static = network.generate(input_ids=ids, cache_implementation="static", **settings)
    with reference(network, lambda path, head: "entmax:alpha=1.5") as twin:
        wanted = twin.generate(input_ids=ids, use_cache=False, **settings)
    assert torch.equal(generated, wanted)
    assert torch.equal(static, wanted)


def test_generation_of_texts_of_unequal_length() -> None:
    network, ids = llama(), tokens()
    kept = torch.ones_like(ids)
    kept[0, :6] = 0
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with swap(network, "sparsemax"):
        together = network.generate(input_ids=ids, attention_mask=kept, **settings)
        alone = network.generate(input_ids=ids[:1, 6:], **settings)
    assert torch.equal(together[0, 6:], alone[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    network = llama().to(dtype)
    cache = DynamicCache(config=network.config)
    with swap(network, "entmax:alpha=1.5") as swapped:
        swapped.check(input_ids=tokens())
        whole = network(input_ids=tokens()).logits
        network(input_ids=tokens()[:, :-1], past_key_values=cache)
        last = network(input_ids=tokens()[:, -1:], past_key_values=cache).logits
    assert whole.dtype == dtype
    wanted = reference_output(network, "entmax:alpha=1.5", input_ids=tokens())
    error = {torch.float64: 1e-6, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    assert relative_error(wanted, whole) < error
    assert relative_error(whole[:, -1:], last) < error


def test_a_floating_mask_of_the_user() -> None:
    network = llama()
    mask = torch.where(torch.ones(LENGTH, LENGTH).tril().bool(), 0.0, -1e9).expand(2, 1, -1, -1)
    output = swapped_output(network, "entmax:alpha=1.5", input_ids=tokens(), attention_mask=mask)
    wanted = swapped_output(network, "entmax:alpha=1.5", input_ids=tokens())
    assert relative_error(wanted, output) < 1e-5


def test_a_module_that_is_called_three_times() -> None:
    network = albert()
    output = swapped_output(network, "sparsemax", input_ids=tokens())
    assert relative_error(reference_output(network, "sparsemax", input_ids=tokens()), output) < 2e-5


def test_an_unknown_keyword_is_refused_by_name() -> None:
    network = llama()
    expected = r"LlamaForCausalLM \(model\.layers\.0\.self_attn\) passes 'head_mask' to its attention"
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=expected):
        network.model(input_ids=tokens(), head_mask=torch.ones(4))


def test_a_model_that_does_not_keep_its_word_is_refused() -> None:
    network = llama()
    with swap(network, "stick-breaking"):
        network.model.layers[1].self_attn.is_causal = False
        with pytest.raises(AbbeError, match=r"stick-breaking needs keys in causal order, but .*layers\.1.* shows all"):
            network(input_ids=tokens())
    network = gpt2()
    network.transformer.h[0].attn.num_heads = 3
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=r"says that it has 3 heads, but attends with 4"):
        network(input_ids=tokens())


def test_weights_cannot_be_asked_for() -> None:
    network = llama()
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match="was asked for output_attentions"):
        network(input_ids=tokens(), output_attentions=True)
