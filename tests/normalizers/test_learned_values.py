"""What was learned can be read: attributes, `str`, and the spec that makes the same normalizer again."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from normalizer_cases import Case, every_case, random_logits

import abbe

LEARNABLE = {
    "learned-temperature": ("t",),
    "ssmax": ("s",),
    "logn": ("slope",),
    "entmax": ("alpha",),
    "asentmax": ("delta", "beta", "gamma"),
    "sink": ("b",),
    "elastic": ("tau",),
    "hybrid": ("mix",),
    "scaled": ("t",),
}


def made_to_learn(name: str, **more: object) -> abbe.Normalizer:
    return abbe.normalizer(name, **(more if name == "learned-temperature" else more | {"learn": True}))


def trained(made: abbe.Normalizer, seed: int = 0) -> abbe.Normalizer:
    """Steps of gradient descent on a target of chance, large enough to move every value."""
    optimizer = torch.optim.Adam(made.parameters(), lr=0.05)
    logits, target = random_logits(2, 3, 4, 9, seed=seed), random_logits(2, 3, 4, 9, seed=seed + 1)
    for _ in range(6):
        optimizer.zero_grad()
        (made(logits) * target).sum().backward()
        optimizer.step()
    return made


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", LEARNABLE)
def test_attributes_follow_training_and_every_head_has_its_number(name: str, heads: int) -> None:
    made = made_to_learn(name, heads=heads)
    before = {key: getattr(made, key) for key in LEARNABLE[name]}
    trained(made)
    for key, first in before.items():
        value = getattr(made, key)
        assert isinstance(value, float if heads == 1 else tuple)
        numbers = [value] if heads == 1 else value
        assert len({first} if heads == 1 else {*first}) == 1
        assert value != first
        assert len(set(numbers)) == heads
        assert numbers == pytest.approx(made.learned[key].value().flatten().tolist(), rel=2e-6, abs=1e-9)


@every_case("learns")
def test_str_makes_what_was_learned_again(case: Case) -> None:
    """Bit for bit, one value or one per head, in parts as well."""
    made = abbe.normalizer(case.spec)
    asked_for = str(made)
    again = abbe.normalizer(str(trained(made)))
    assert str(made) not in (case.spec, asked_for)
    assert made.initial_spec == asked_for
    assert str(again) == str(made) == made.spec == again.initial_spec
    assert repr(made) == f"{type(made).__name__}({str(made)!r})"
    for mine, theirs in zip(made.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    logits = random_logits(2, 3, 4, 9, seed=7)
    assert torch.equal(made(logits), again(logits))


def test_numbers_are_as_short_as_they_can_be() -> None:
    assert abbe.normalizer("ssmax:s=0.4,learn=true").s == 0.4  # 0.4000000059 as a float32
    assert str(abbe.normalizer("entmax:alpha=1.3,learn=true,heads=2")) == "entmax:alpha=1.3,learn=true,heads=2"
    assert str(abbe.normalizer("ssmax:learn=true,heads=2")) == "ssmax:learn=true,heads=2"
    made = abbe.normalizer("entmax:alpha=1.25/1.5,learn=true")
    assert (made.alpha, made.heads) == ((1.25, 1.5), 2)
    assert str(made) == "entmax:alpha=1.25/1.5,learn=true,heads=2"
    assert str(abbe.normalizer("entmax", alpha=[1.25, 1.5], learn=True)) == str(made)


@pytest.mark.parametrize("name", LEARNABLE)
def test_learned_values_cannot_leave_their_range(name: str) -> None:
    made, logits = made_to_learn(name), random_logits(3, 9, dtype=torch.float32)
    for extreme in (-80.0, 20.0, 80.0):
        with torch.no_grad():
            for raw in made.parameters():
                raw.fill_(extreme)
        assert str(abbe.normalizer(str(made))) == str(made)
        if extreme == 80 and name in ("ssmax", "asentmax"):  # scales without an upper end
            continue
        weights = made(logits)
        assert bool(torch.isfinite(weights).all())
        weights.square().sum().backward()
        assert all(bool(torch.isfinite(raw.grad).all()) for raw in made.parameters())
        assert 0 <= made.lipschitz(keys=5) < math.inf


def test_values_that_are_no_numbers_are_shown() -> None:
    made = abbe.normalizer("entmax:alpha=1.5,learn=true")
    with torch.no_grad():
        made.learned["alpha"].raw.fill_(torch.nan)
    assert str(made) == "entmax:alpha=nan,learn=true"


def test_copies_and_precisions() -> None:
    made = trained(abbe.normalizer("hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5,learn=true"))
    assert str(copy.deepcopy(made)) == str(pickle.loads(pickle.dumps(made))) == str(made)
    fresh = abbe.normalizer("hybrid:a=softmax,b=(entmax:alpha=1.5,learn=true),mix=0.5,learn=true")
    fresh.load_state_dict(made.state_dict())
    assert str(fresh) == str(made)
    wide = copy.deepcopy(made).double()
    assert wide.mix == pytest.approx(made.mix, rel=1e-7)
    assert float(wide.learned["mix"].value().detach()) == pytest.approx(wide.mix, rel=1e-15)
    assert abbe.normalizer("softmax:temperature=0.3").temperature == 0.3
    assert abbe.normalizer("entmax:alpha=1.3").alpha == 1.3


def test_a_learned_value_cannot_be_set_by_its_name() -> None:
    """It would change nothing: the parameter is raw, in `learned`."""
    with pytest.raises(AttributeError, match="no setter"):
        abbe.normalizer("entmax:alpha=1.5,learn=true").alpha = 1.2  # type: ignore[misc]
