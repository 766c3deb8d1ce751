"""Names, spec strings and the list of normalizers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from normalizer_cases import CASES, Case, every_case, random_logits

import abbe
from abbe.normalizers import format_spec

INFOS = {info.name: info for info in abbe.list_normalizers()}
CLASSES = [type(abbe.normalizer(name)) for name in INFOS]


def test_no_normalizer_goes_untested() -> None:
    assert {case.name for case in CASES} == set(INFOS)
    assert len(set(CLASSES)) == len(INFOS)


@every_case()
def test_flags_of_the_case_are_those_of_the_class(case: Case) -> None:
    made = case.make()
    assert made.sums_to_one == case.simplex
    if case.name != "norm-softmax":  # see test_norm_softmax_jumps_at_a_flat_row
        assert made.continuous == case.continuous


def test_norm_softmax_jumps_at_a_flat_row() -> None:
    """Free of scale below gamma: arbitrarily close to a flat row the weights are those of a row of deviation 1."""
    made = abbe.normalizer("norm-softmax")
    near = made(torch.tensor([1e-12, 0.0], dtype=torch.float64))
    assert float((near - made(torch.zeros(2, dtype=torch.float64))).abs().max()) > 0.3


@every_case()
def test_str_round_trips(case: Case) -> None:
    made = abbe.normalizer(case.spec)
    again = abbe.normalizer(str(made))
    assert str(again) == str(made) == made.spec
    assert type(again) is type(made)
    logits = random_logits(2, 3, 4, 9)
    assert torch.equal(again(logits), made(logits))
    assert str(made) in repr(made)


def options_of(name: str) -> st.SearchStrategy[dict[str, object]]:
    """Any allowed value of any parameter (learning apart)."""
    drawn = {}
    for option in INFOS[name].parameters:
        if option.kind == "count" and option.name != "heads":
            drawn[option.name] = st.integers(max(int(option.low), 2), 10_000)
        elif option.kind == "number":
            low, high = max(option.low, -1e3), min(option.high, 1e3)
            inner = st.floats(low, high, exclude_min=True, exclude_max=True, allow_subnormal=False)
            drawn[option.name] = st.one_of(inner, st.just(None)) if option.optional else inner
        elif option.name == "renormalize":
            drawn[option.name] = st.booleans()
    return st.fixed_dictionaries({}, optional=drawn)


simple = st.sampled_from(sorted(set(INFOS) - {"hybrid", "scaled"})).flatmap(
    lambda n: st.tuples(st.just(n), options_of(n))
)


@given(simple)
def test_drawn_specs_round_trip(made_of: tuple[str, dict[str, object]]) -> None:
    name, parameters = made_of
    made = abbe.normalizer(name, **parameters)
    again = abbe.normalizer(str(made))
    assert str(again) == str(made)
    for key, value in parameters.items():
        assert getattr(again, key) == value


def nested(depth: int) -> st.SearchStrategy[str]:
    leaf = simple.map(lambda pair: str(abbe.normalizer(pair[0], **pair[1])))
    if depth == 0:
        return leaf
    inner = nested(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(inner, inner, st.integers(1, 99)).map(lambda t: f"hybrid:a=({t[0]}),b=({t[1]}),mix={t[2] / 100}"),
    )


@given(nested(2))
def test_nested_specs_round_trip(spec: str) -> None:
    made = abbe.normalizer(spec)
    assert str(abbe.normalizer(str(made))) == str(made)


def test_forms_of_the_same_normalizer() -> None:
    logits = random_logits(3, 9)
    forms = [
        abbe.normalizer("entmax:alpha=1.25"),
        abbe.normalizer("entmax", alpha=1.25),
        abbe.normalizer("entmax", alpha="1.25"),
        abbe.normalizer(" Alpha-Entmax : alpha = 1.25 "),
        abbe.normalizer("alpha_entmax:alpha=1.25,learn=false,heads=1"),
    ]
    assert {str(form) for form in forms} == {"entmax:alpha=1.25"}
    assert all(torch.equal(form(logits), forms[0](logits)) for form in forms)
    assert abbe.normalizer(forms[0]) is forms[0]
    mixed = abbe.normalizer("hybrid", a=forms[0], b="topk:k=3", mix=0.25)
    assert mixed.a is forms[0]
    assert str(mixed) == "hybrid:a=entmax:alpha=1.25,b=topk:k=3,mix=0.25"


def test_what_a_name_alone_is_shown_as() -> None:
    """The parameter that says what it is stands there even at its default."""
    for name, info in INFOS.items():
        shown = {option.name: option.default for option in info.parameters if option.shown}
        assert str(abbe.normalizer(name)) == format_spec(name, shown)
    wanted = "logn:trained=1024", "entmax:alpha=1.5", "hybrid:a=softmax,b=sparsemax,mix=0.5", "ssmax", "sink:b=0"
    assert [str(abbe.normalizer(spec.partition(":")[0])) for spec in wanted] == list(wanted)


def test_unknown_names_get_a_suggestion_or_the_list() -> None:
    known = f"Known normalizers: {', '.join(INFOS)}"
    answers = {"entmx": "Did you mean 'entmax'?", "sparsmax": "Did you mean 'sparsemax'?"}
    for wrong, more in (answers | dict.fromkeys(("???", "x", "nosuch"), known)).items():
        with pytest.raises(abbe.AbbeError) as caught:
            abbe.normalizer(wrong)
        assert str(caught.value) == f"unknown normalizer {wrong!r}. {more}"
    assert [abbe.normalizer(name).name for name in ("sparse-max", "top_k")] == ["sparsemax", "topk"]


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.name)
def test_aliases(made: type[abbe.Normalizer]) -> None:
    for alias in made.aliases:
        assert type(abbe.normalizer(alias)) is made
        assert type(abbe.normalizer(alias.upper().replace("-", "_"))) is made


@pytest.mark.parametrize("info", INFOS.values(), ids=lambda info: info.name)
def test_records(info: abbe.NormalizerInfo) -> None:
    assert "\n" not in info.meaning
    assert "high" in info.meaning or "low" in info.meaning
    assert info.paper
    made = abbe.normalizer(info.example)
    assert made.name == info.name
    assert str(abbe.normalizer(str(made))) == str(made)
    for option in info.parameters:
        assert option.meaning
        assert option.allowed
    with pytest.raises(AttributeError):
        info.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("spec", ["entmax:alpha=1.37,learn=true", "ssmax:s=0.43,learn=true", "sink:b=-1.5,learn=true"])
def test_learning_starts_at_the_given_value(spec: str) -> None:
    learned, fixed = abbe.normalizer(spec), abbe.normalizer(spec.removesuffix(",learn=true"))
    logits = random_logits(3, 9)
    torch.testing.assert_close(learned(logits), fixed(logits), rtol=1e-6, atol=1e-7)
