"""A user's mistake raises AbbeError in one line that names the argument, what came and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from normalizer_cases import Case, base_cases

import abbe


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(abbe.AbbeError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, ValueError)
    return text


TENSORS = {
    "whole numbers": (lambda n: n(torch.arange(5)), "logits.*floating-point.*int64"),
    "booleans": (lambda n: n(torch.ones(5, dtype=torch.bool)), "logits.*floating-point.*bool"),
    "complex": (lambda n: n(torch.ones(5, dtype=torch.complex64)), "logits.*floating-point.*complex64"),
    "a list": (lambda n: n([1.0, 2.0]), "logits.*floating-point.*list"),
    "no dimension": (lambda n: n(torch.tensor(1.0)), r"logits.*at least one key.*shape \(\)"),
    "no key": (lambda n: n(torch.ones(3, 3, 0)), r"logits.*at least one key.*shape \(3, 3, 0\)"),
    "float mask": (lambda n: n(torch.ones(3, 3, 5), torch.ones(5)), "mask.*bool.*float32"),
    "list as mask": (lambda n: n(torch.ones(3, 3, 5), [True] * 5), "mask.*bool.*list"),
    "short mask": (
        lambda n: n(torch.ones(3, 3, 5), torch.ones(4, dtype=torch.bool)),
        r"mask of shape \(4,\) does not broadcast to logits \(3, 3, 5\)",
    ),
    "mask with more dimensions": (
        lambda n: n(torch.ones(3, 3, 5), torch.ones(2, 3, 3, 5, dtype=torch.bool)),
        r"mask of shape \(2, 3, 3, 5\) does not broadcast",
    ),
    "mask of more rows": (
        lambda n: n(torch.ones(3, 1, 5), torch.ones(3, 4, 5, dtype=torch.bool)),
        r"mask of shape \(3, 4, 5\) does not broadcast",
    ),
    "NaN when checked": (
        lambda n: n(torch.full((3, 3, 5), torch.nan), check=True),
        r"logits hold NaN or \+inf at visible keys",
    ),
}


@base_cases()
@pytest.mark.parametrize("what", TENSORS)
def test_bad_tensors(case: Case, what: str) -> None:
    call, pattern = TENSORS[what]
    made = case.make()
    text = message_of(lambda: call(made))
    assert re.search(pattern, text), text
    assert case.name in text
    if what not in ("NaN when checked",):
        jacobian = type("Jacobian", (), {"__call__": staticmethod(lambda *args: made.jacobian(*args))})()
        assert re.search(pattern, message_of(lambda: call(jacobian)))


@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 4, 9), (4, 2, 9)])
def test_heads_must_match(shape: tuple[int, ...]) -> None:
    inner = "(sink:learn=true,heads=3)"
    for spec in ("entmax:learn=true,heads=3", f"hybrid:a={inner},b=softmax", f"scaled:of={inner}"):
        text = message_of(lambda spec=spec: abbe.normalizer(spec)(torch.zeros(shape)))
        assert "(..., 3 heads, queries, keys)" in text
        assert str(shape) in text


PARAMETERS = {
    "entmax:alpha=1": r"entmax: alpha must be a number in \(1, 2\], got '1'",
    "entmax:alpha=2.5": r"alpha must be a number in \(1, 2\], got '2.5'",
    "entmax:alpha=nan": r"alpha must be a number in \(1, 2\], got 'nan'",
    "entmax:alpha=high": r"alpha must be a number in \(1, 2\], got 'high'",
    "entmax:alpha=true": r"alpha must be a number in \(1, 2\], got 'true'",
    "entmax:alpha=none": r"alpha must be a number in \(1, 2\], got 'none'",
    "entmax:learn=yes": r"learn must be true or false, got 'yes'",
    "entmax:learn=1": r"learn must be true or false, got '1'",
    "entmax:heads=0,learn=true": r"heads must be a whole number >= 1, got '0'",
    "entmax:heads=4": r"heads=4 needs learn=true",
    "entmax:alpha=2,learn=true": r"alpha=2 cannot learn from the edge of its range, start strictly between 1 and 2",
    "entmax:alpha=1.2/1.4": r"heads=2 needs learn=true",
    "entmax:alpha=1.2/1.4,learn=true,heads=3": r"alpha has 2 values for 3 heads",
    "asentmax:beta=1/2,delta=1/2/3,learn=true": r"values for . heads",
    "entmax:alpha=1.2/2,learn=true": r"alpha=2 cannot learn from the edge",
    "entmax:alpha=1.2/3,learn=true": r"alpha must be a number in \(1, 2\], got '3'",
    "entmax:beta=1": r"entmax: no parameter 'beta', known: alpha, learn, heads",
    "sparsemax:alpha=2": r"sparsemax: no parameter 'alpha', known: none",
    "softmax:temperature=0": r"temperature must be a number > 0, got '0'",
    "softmax:temperature=inf": r"temperature must be a number > 0, got 'inf'",
    "softmax:temperature=-1": r"temperature must be a number > 0, got '-1'",
    "topk:k=0": r"topk: k must be a whole number >= 1, got '0'",
    "topk:k=-2": r"k must be a whole number >= 1, got '-2'",
    "topk:k=2.5": r"k must be a whole number >= 1, got '2.5'",
    "topk:k=3/4": r"k must be a whole number",
    "topp:p=0": r"p must be a number in \(0, 1\], got '0'",
    "topp:p=1.1": r"p must be a number in \(0, 1\], got '1.1'",
    "threshold:rel=-0.1": r"rel must be a number in \[0, 1\], got '-0.1'",
    "clipped:zeta=0.9": r"zeta must be a number >= 1, got '0.9'",
    "clipped:gamma=0.1": r"gamma must be a number in .*, got '0.1'",
    "relu:power=0.5": r"power must be a number >= 1, got '0.5'",
    "relu:eps=-1": r"eps must be a number >= 0, got '-1'",
    "logn:floor=-1": r"floor must be a number >= 0",
    "logn:trained=1": r"trained must be a whole number >= 2, got '1'",
    "ssmax:s=0": r"s must be a number > 0, got '0'",
    "sink:b=inf": r"b must be a number, got 'inf'",
    "norm-softmax:gamma=0": r"gamma must be a number > 0, got '0'",
    "learned-temperature:t=9": r"t must be a number in \(-4.60517, 4.60517\), got '9'",
    "scaled:of=softmax,t=5": r"t must be a number in \(-4.60517, 4.60517\), got '5'",
    "hybrid:mix=2": r"mix must be a number in \[0, 1\], got '2'",
    "hybrid:a=entmx": r"unknown normalizer 'entmx'. Did you mean 'entmax'",
    "hybrid:a=topk:k=0": r"topk: k must be a whole number >= 1, got '0'",
    "hybrid:a=entmax:alpha=1.5,learn=maybe": r"learn must be true or false, got 'maybe'",
    "hybrid:a=(entmax:alpha=1.5,mix=0.5": r"unbalanced brackets",
    "hybrid:a=entmax:alpha=1.5),mix=0.5": r"unbalanced brackets",
    "hybrid:a=softmax,a=sparsemax": r"gives a twice",
    "hybrid:a=topk:k=3,renormalize=false": r"hybrid: no parameter 'renormalize'",
    "entmax:": r"is not key=value",
    "entmax:alpha": r"'alpha' is not key=value",
    "entmax:alpha=": r"'alpha=' is not key=value",
    "entmax:alpha=1.5,": r"is not key=value",
    "entmax:=1.5": r"'=1.5' is not key=value",
    ":alpha=1.5": r"has no name",
    "": r"has no name",
}


@pytest.mark.parametrize("spec", PARAMETERS)
def test_bad_specs(spec: str) -> None:
    text = message_of(lambda: abbe.normalizer(spec))
    assert re.search(PARAMETERS[spec], text), text


def test_bad_calls() -> None:
    assert "alpha given both" in message_of(lambda: abbe.normalizer("entmax:alpha=1.5", alpha=1.5))
    made = abbe.normalizer("entmax")
    assert "is already an instance, which takes no alpha" in message_of(lambda: abbe.normalizer(made, alpha=1.5))
    assert "spec must be a string or a Normalizer, got int" in message_of(lambda: abbe.normalizer(3))
    assert "got None" in message_of(lambda: abbe.normalizer("entmax", alpha=None))
    assert "got int" in message_of(lambda: abbe.normalizer("hybrid", a=3))
    assert "or one for each head, got []" in message_of(lambda: abbe.normalizer("entmax", alpha=[], learn=True))


def test_check_passes_what_is_fine() -> None:
    made = abbe.normalizer("entmax")
    rows = torch.tensor([[1.0, -torch.inf], [-torch.inf, -torch.inf]])
    assert bool(torch.isfinite(made(rows, check=True)).all())
    hidden = torch.tensor([[1.0, torch.nan]])
    made(hidden, torch.tensor([True, False]), check=True)
    assert "NaN" in message_of(lambda: made(hidden, torch.tensor([True, True]), check=True))


@pytest.mark.parametrize("levels", [33, 400, 100_000])
@pytest.mark.parametrize("spec", ["hybrid:a=", "scaled:of=", "hybrid:mix=0.5,b=(", "hybrid:a=softmax,b=("])
def test_specs_nested_too_deeply(spec: str, levels: int) -> None:
    closing = ")" * levels * spec.count("(")
    text = message_of(lambda: abbe.normalizer(spec * levels + "topk:k=3" + closing))
    assert re.fullmatch(r"spec '.{40}\.\.\.' is nested too deeply: at most 32 specs inside each other", text)


def test_specs_nested_as_deeply_as_allowed() -> None:
    made = abbe.normalizer("hybrid:a=" * 32 + "softmax")
    assert str(abbe.normalizer(str(made))) == str(made)
    torch.testing.assert_close(made(torch.zeros(2, 4)), torch.full((2, 4), 0.25))
    wide = "hybrid:a=(scaled:of=topk:k=3,t=0.5),b=(scaled:of=topk:k=2,t=0.5),mix=0.5"
    assert str(abbe.normalizer(wide)) == wide
    chain = "(hybrid:a=topk:k=3,b=topk:k=2)"  # more than 32 colons, but few inside each other
    for _ in range(4):
        chain = f"(hybrid:a={chain},b={chain},mix=0.5)"
    abbe.normalizer(chain[1:-1])


def test_normalizers_nested_too_deeply() -> None:
    made = abbe.normalizer("softmax")
    for _ in range(32):
        made = abbe.normalizer("scaled", of=made)
    assert made(torch.zeros(4)).tolist() == [0.25] * 4
    text = message_of(lambda: abbe.normalizer("scaled", of=made))
    assert text == "scaled: normalizers can be nested at most 32 deep"
