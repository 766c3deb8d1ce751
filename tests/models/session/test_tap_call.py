"""AttentionCall alone: rows of logits and visible keys against the formula written out densely."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import gpt2, llama, tokens
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.pytorch_utils import Conv1D

from abbe import AbbeError, normalizer
from abbe.models import AttentionCall, swap, tap


def random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@st.composite
def calls(draw: Any) -> AttentionCall:
    """A call with any mixture of options, float64."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys, width = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    heads = kv_heads * group
    kind = draw(st.sampled_from(["none", "causal", "bool", "float", "lowest"]))
    table = torch.rand(batch, draw(st.sampled_from([1, heads])), draw(st.sampled_from([1, queries])), keys, generator=g)
    hidden = {"float": -1e4, "lowest": torch.finfo(torch.float32).min}.get(kind, 0.0)
    masks = {"none": None, "causal": None, "bool": table < 0.7}
    return AttentionCall(
        layer=0, name="layer", kind="self",
        query=random(g, batch, heads, queries, width),
        key=random(g, batch, kv_heads, keys, width),
        value=random(g, batch, kv_heads, keys, 3),
        scale=draw(st.sampled_from([1.0, 0.5, -2.0])),
        softcap=draw(st.sampled_from([None, 0.7])),
        sink=draw(st.sampled_from([None, random(g, heads)])),
        position_bias=draw(st.sampled_from([None, random(g, 1, heads, queries, keys)])),
        mask=masks.get(kind, torch.where(table < 0.7, table, torch.tensor(hidden))),
        causal=kind == "causal",
    )  # fmt: skip


def dense(call: AttentionCall) -> Tensor:
    """All logits, one batch element, head, query and key at a time."""
    batch, heads, queries, _ = call.query.shape
    keys, group = call.key.shape[-2], heads // call.key.shape[1]
    logits = torch.full((batch, heads, queries, keys), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    score = float(call.query[b, h, i] @ call.key[b, h // group, j]) * call.scale
                    score = call.softcap * math.tanh(score / call.softcap) if call.softcap else score
                    if call.position_bias is not None:
                        score += float(call.position_bias[0, h, i, j])
                    mask = None if call.mask is None else call.mask.expand(batch, heads, queries, keys)[b, h, i, j]
                    if mask is not None and mask.dtype != torch.bool:
                        score, mask = score + float(mask), mask > -9999
                    if (mask is None or bool(mask)) and (not call.causal or j <= i):
                        logits[b, h, i, j] = score
    return logits


@given(call=calls(), data=st.data())
def test_logits_of_any_queries(call: AttentionCall, data: st.DataObject) -> None:
    logits = dense(call)
    rows = data.draw(st.lists(st.integers(0, call.query.shape[-2] - 1), max_size=5))
    queries = torch.tensor(rows, dtype=torch.long)
    computed, visible = call.logits(queries), call.visible(queries)
    torch.testing.assert_close(computed, logits[:, :, queries], atol=1e-9, rtol=1e-9)
    assert torch.equal(visible.expand_as(computed), logits[:, :, queries] > -math.inf)
    assert visible.shape[1] in (1, call.query.shape[1])


@given(call=calls(), spec=st.sampled_from([None, "softmax", "sparsemax", "topk:k=2"]))
def test_weights_of_all_queries(call: AttentionCall, spec: str | None) -> None:
    """Of the logits beside the sink, which is no key; queries without keys get zeros."""
    logits = dense(call)
    if call.sink is not None:
        logits = torch.cat([call.sink[:, None, None].expand(*logits.shape[:-1], 1), logits], -1)
    wanted = normalizer(spec or "softmax")(logits)[..., -call.key.shape[-2] :]
    torch.testing.assert_close(call.weights(normalizer=spec), wanted, atol=1e-9, rtol=1e-9)
    assert call.weights(torch.arange(0)).shape == (*call.query.shape[:2], 0, call.key.shape[-2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32_logits(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (random(g, 1, 4, 7, 8).to(dtype) for _ in range(3))
    call = AttentionCall(0, "layer", "self", q, k, v, 0.3, causal=True)
    wide = replace(call, query=q.double(), key=k.double(), value=v.double())
    logits, wanted = call.logits(torch.arange(7)), wide.logits(torch.arange(7))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, wanted.float(), atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(call.logits(torch.arange(7)), logits)


def simple(projection: nn.Module | None = None) -> AttentionCall:
    q = torch.zeros(1, 4, 5, 8)
    return AttentionCall(0, "some.path", "self", q, q, q, 1.0, projection=projection)


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_value_to_output_is_the_projection_split_by_heads(kind: str) -> None:
    projection = nn.Linear(32, 6, bias=False) if kind == "linear" else Conv1D(6, 32)
    heads = torch.randn(3, 4, 8)
    outputs = torch.einsum("thd,hdo->to", heads, simple(projection).value_to_output())
    with torch.no_grad():
        wanted = projection(heads.reshape(3, 32)) - projection(torch.zeros(1, 32))
    torch.testing.assert_close(outputs, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("projection", "why"), [(None, "was not found"), (nn.Linear(16, 6), "is a Linear"), (nn.ReLU(), "is a ReLU")]
)
def test_no_value_to_output_without_a_fitting_projection(projection: nn.Module | None, why: str) -> None:
    with pytest.raises(AbbeError, match=rf"some\.path: its output projection {why}"):
        simple(projection).value_to_output()


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (torch.tensor([5]), r"queries must lie in 0 \.\. 4; got 5 \.\. 5"),
        (torch.tensor([-1, 2]), r"queries must lie in 0 \.\. 4; got -1 \.\. 2"),
        (torch.tensor([1.0]), "queries must be a 1-D int64 tensor"),
        (torch.tensor([[1]]), "queries must be a 1-D int64 tensor"),
    ],
)
def test_bad_queries(queries: Tensor, message: str) -> None:
    for method in (simple().logits, simple().visible, simple().weights):
        with pytest.raises(AbbeError, match=message):
            method(queries)


# -- Keywords: every one is honoured, known to be harmless, or refused by name ----------------------------------------


pytestmark = pytest.mark.usefixtures("no_grad")
STATES = torch.randn(3, 1, 4, 3, 16, generator=torch.Generator().manual_seed(0)).unbind()
HONOURED = {"scaling", "dropout", "is_causal", "softcap", "s_aux", "position_bias", "sliding_window"}
# Sparse attention: the indices of the keys that a query may see.
REFUSED = {"indices", "block_indices"}


def passed_keywords() -> set[str]:
    """All keywords that any model of this transformers version passes to its attention function by name."""
    keywords: set[str] = set()
    for file in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        for rest in file.read_text(encoding="utf-8").split("= attention_interface(")[1:]:
            call: Any = ast.parse(f"f({rest[: closing_bracket(rest)]})", mode="eval").body
            keywords |= {keyword.arg for keyword in call.keywords if keyword.arg}
    return keywords


def closing_bracket(text: str) -> int:
    """Where the bracket closes that was opened just before the text."""
    depth = 1
    for mark in re.finditer(r"[()]", text):
        depth += 1 if mark[0] == "(" else -1
        if depth == 0:
            return mark.start()
    raise AssertionError("an open bracket")


@pytest.fixture(scope="module")
def heard() -> Iterator[Callable[..., AttentionCall]]:
    """What the tap reads from a call of its attention function with these keywords."""
    network, calls = gpt2(n_layer=1), []
    with torch.no_grad(), tap(network) as t:
        function = AttentionInterface()[network.config._attn_implementation]
        t.listen(calls.append)

        def call(attention_mask: Any = None, **keywords: Any) -> AttentionCall:
            function(network.transformer.h[0].attn, *STATES, attention_mask, **keywords)
            return calls.pop()

        yield call


Heard = Callable[..., AttentionCall]


def test_every_keyword_of_any_model_is_known(heard: Heard) -> None:
    """Those that are not honoured change nothing."""
    named = passed_keywords() - {"query", "key", "value", "attention_mask", "output_attentions"}
    assert len(named) > 10
    named |= {"use_cache", "logits_to_keep", "output_hidden_states", "return_dict"}  # what callers pass through
    call = heard(scaling=0.5, **dict.fromkeys(named - HONOURED - REFUSED, torch.ones(1)))
    shaping = (call.scale, call.softcap, call.sink, call.position_bias, call.window, call.mask, call.causal)
    assert shaping == (0.5, None, None, None, None, None, True)


@pytest.mark.parametrize("name", sorted(REFUSED | {"head_mask", "layer_head_mask", "alibi", "cache", "anything_new"}))
def test_a_keyword_that_might_change_the_weights_is_refused(name: str, heard: Heard) -> None:
    with pytest.raises(AbbeError, match=rf"^unsupported: GPT2LMHeadModel \(.*\) passes '{name}' to its attention"):
        heard(scaling=1.0, **{name: torch.ones(1)})
    heard(scaling=1.0, **{name: None})


def test_keywords_are_honoured(heard: Heard) -> None:
    assert heard().scale == 0.25
    call = heard(scaling=torch.tensor(0.5), softcap=torch.tensor(3.0), sliding_window=7)
    assert (call.scale, call.softcap, call.window) == (0.5, 3.0, 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scaling": torch.ones(4)}, r"passes 'scaling' that is not one number; got a tensor of shape \(4,\)"),
        ({"scaling": "big"}, "passes 'scaling' that is not one number; got 'big'"),
        ({"softcap": torch.ones(2)}, "passes 'softcap' that is not one number"),
        ({"sliding_window": (1, 2)}, r"passes 'sliding_window' that is not one number; got \(1, 2\)"),
        (
            {"s_aux": torch.ones(3)},
            r"passes 's_aux' that is not one number per head \(4\); got a tensor of shape \(3,\)",
        ),
        ({"s_aux": 1.0}, r"passes 's_aux' that is not one number per head \(4\); got 1.0"),
        ({"position_bias": torch.ones(3, 3)}, "passes 'position_bias' that is not a floating tensor"),
        ({"output_attentions": True}, "was asked for output_attentions"),
    ],
)
def test_known_keywords_of_an_unknown_form_are_refused(given: dict[str, Any], message: str, heard: Heard) -> None:
    with pytest.raises(AbbeError, match=message):
        heard(**given)


@pytest.mark.parametrize(
    "mask", [torch.ones(3, 3, dtype=torch.bool), torch.ones(1, 1, 3, 3, dtype=torch.long), "causal"]
)
def test_masks_that_cannot_be_read_are_refused(mask: Any, heard: Heard) -> None:
    with pytest.raises(AbbeError, match=r"^unsupported: .* has a mask that is not bool or floating with four dims"):
        heard(mask)


def test_a_model_that_passes_an_unknown_keyword() -> None:
    network = gpt2()
    expected = r"GPT2LMHeadModel \(transformer\.h\.0\.attn\) passes 'head_gate'"
    with pytest.raises(AbbeError, match=expected), tap(network) as t:
        t.check(input_ids=tokens(), head_gate=torch.ones(4))


@pytest.mark.parametrize("opened", [tap, lambda network: swap(network, "sparsemax")], ids=["tap", "swap"])
def test_output_attentions_is_refused_by_keyword_and_by_setting(opened: Any) -> None:
    asked = gpt2(attn_implementation="eager")
    asked.config.output_attentions = True
    for network, more in ((gpt2(), {"output_attentions": True}), (llama(), {"output_attentions": True}), (asked, {})):
        with opened(network), pytest.raises(AbbeError, match="was asked for output_attentions"):
            network(input_ids=tokens(), **more)


def test_other_arguments_of_forward_pass_through() -> None:
    network: nn.Module = llama()
    inputs = {"input_ids": tokens(), "output_hidden_states": True, "use_cache": False, "logits_to_keep": 3}
    with tap(network) as t:
        assert t.check(**inputs) < 1e-5
        result = network(**inputs)
    assert result.logits.shape[1] == 3
    assert len(result.hidden_states) == 3
