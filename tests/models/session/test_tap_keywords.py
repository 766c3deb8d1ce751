"""Every keyword of an attention function is honoured, known to be harmless, or refused by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import gpt2, llama, tokens
from torch import nn
from transformers import AttentionInterface

from abbe import AbbeError
from abbe.models import AttentionCall, swap, tap

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
