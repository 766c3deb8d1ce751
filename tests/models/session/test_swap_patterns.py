"""Which heads a pattern names, which normalizer they get, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, bert, gpt2, llama, t5, tokens

from abbe import AbbeError, Plan, normalizer, plan, swap, tap
from abbe.models import HeadGroup, rules_in

PATHS = ("model.layers.0.self_attn", "model.layers.1.self_attn", "model.layers.2.self_attn")


def shown(groups_of: Plan | dict[str, tuple[HeadGroup, ...]]) -> dict[str, list[tuple[str, tuple[int, ...], str]]]:
    return {
        path: [(group.pattern, group.heads, str(group.normalizer)) for group in groups]
        for path, groups in groups_of.items()
    }


def groups(what: object) -> dict[str, list[tuple[str, tuple[int, ...], str]]]:
    """Pattern, heads and spec of the groups of a llama with three layers of four heads."""
    with swap(llama(num_hidden_layers=3), what) as swapped:  # type: ignore[arg-type]
        return shown(swapped.normalizers)


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("*", (0, 1, 2)),
        ("layers.1", (1,)),
        ("layers.0,2", (0, 2)),
        ("layers.1-2", (1, 2)),
        ("layers.0,1-2", (0, 1, 2)),
        ("model.layers.1.self_attn", (1,)),
        ("*.2.*", (2,)),
        ("model.layers.[01].*", (0, 1)),
    ],
)
@pytest.mark.parametrize(("heads", "named"), [("", (0, 1, 2, 3)), (".heads.2", (2,)), (".heads.0,2-3", (0, 2, 3))])
def test_layers_and_heads(pattern: str, numbers: tuple[int, ...], heads: str, named: tuple[int, ...]) -> None:
    by_layer = groups({pattern + heads: "sparsemax"})
    rest = tuple(head for head in range(4) if head not in named)
    own = [("", rest, "None")] if rest else []
    for number, path in enumerate(PATHS):
        if number in numbers:
            assert by_layer[path] == [(pattern + heads, named, "sparsemax"), *own]
        else:
            assert by_layer[path] == [("", (0, 1, 2, 3), "None")]


def test_the_first_pattern_that_names_a_head_wins() -> None:
    by_layer = groups({"layers.1": "topk:k=2", "*.heads.0,3": "sparsemax", "*": "softmax"})
    for path in (PATHS[0], PATHS[2]):
        assert by_layer[path] == [("*.heads.0,3", (0, 3), "sparsemax"), ("*", (1, 2), "softmax")]
    assert by_layer[PATHS[1]] == [("layers.1", (0, 1, 2, 3), "topk:k=2")]
    assert groups("sparsemax") == {path: [("*", (0, 1, 2, 3), "sparsemax")] for path in PATHS}
    # A last pattern for all may be left with nothing.
    assert groups({"layers.0-2": "sparsemax", "*": "softmax"})[PATHS[0]] == [("layers.0-2", (0, 1, 2, 3), "sparsemax")]


def test_layers_have_the_order_of_the_network() -> None:
    network = t5()
    paths = [name for name, module in network.named_modules() if type(module).__name__ == "T5Attention"]
    with swap(network, {"layers.4": "sparsemax", "*EncDec*": "topk:k=2"}) as swapped:
        assert swapped.layers == paths
        specs = {path: str(applied[0].normalizer) for path, applied in swapped.normalizers.items()}
    cross = [path for path in paths if "EncDec" in path]
    assert len(cross) == 2
    assert {path for path, spec in specs.items() if spec == "topk:k=2"} == set(cross)
    assert specs[paths[4]] == "sparsemax"


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_are_counted_in_every_family(name: str) -> None:
    with swap(FAMILIES[name].build(), "sparsemax") as swapped:
        assert {len(applied[0].heads) for applied in swapped.normalizers.values()} == {4}


ALL = r"layers: 0 model\.layers\.0\.self_attn, 1 model\.layers\.1\.self_attn$"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"layers.2": "sparsemax"}, rf"^pattern 'layers\.2': there is no layer 2; {ALL}"),
        ({"layers.0-7": "sparsemax"}, rf"^pattern 'layers\.0-7': there is no layer 2; {ALL}"),
        ({"layers.x": "sparsemax"}, rf"^pattern 'layers\.x' matches no layer; write .*; {ALL}"),
        ({"encoder*": "sparsemax"}, rf"^pattern 'encoder\*' matches no layer; write .*; {ALL}"),
        ({"heads.0": "sparsemax"}, rf"^pattern 'heads\.0' matches no layer; write .*; {ALL}"),
        ({"": "sparsemax"}, rf"^pattern '' matches no layer; write .*; {ALL}"),
        ({"layers.1-0": "sparsemax"}, r"^pattern 'layers\.1-0': 1-0 runs backwards; write 0-1$"),
        ({"*.heads.4": "sparsemax"}, r"pattern '\*\.heads\.4': model\.layers\.0\.self_attn has no head 4; .* 0-3$"),
        ({"*.heads.a": "sparsemax"}, r"pattern '\*\.heads\.a': heads must be numbers .*; got 'a'$"),
        ({"*.heads.": "sparsemax"}, r"pattern '\*\.heads\.': heads must be numbers .*; got ''$"),
        ({3: "sparsemax"}, r"a pattern must be a string .*; got 3$"),
        ({}, r"^there is no pattern"),
        ({"*": "softmax", "layers.1": "sparsemax"}, r"pattern 'layers\.1' has no effect: .*; put it first$"),
        ({"*": "entmx"}, r"unknown normalizer 'entmx'\. Did you mean 'entmax'\?"),
        ({"*": 3}, r"spec must be a string or a Normalizer, got int"),
        ("layers.0=sparsemax; layers.1", r"^'layers\.1' is not PATTERN=SPEC: write 'layers\.3=topk:k=32; \*=softmax'$"),
        ("layers.0=sparsemax;;", r"^'' is not PATTERN=SPEC"),
        (";", r"^'' is not PATTERN=SPEC"),
        ("topk:k=2; layers.1=softmax", r"^'topk:k=2' is not PATTERN=SPEC"),
        ("=sparsemax", r"^'=sparsemax' is not PATTERN=SPEC"),
        ("layers.0=", r"^'layers\.0=' is not PATTERN=SPEC"),
        ("layers.0=sparsemax; layers.0=softmax", r"^pattern 'layers\.0' is given twice$"),
        ("layers.7=sparsemax", rf"^pattern 'layers\.7': there is no layer 7; {ALL}"),
        (None, r"spec must be a string or a Normalizer, got NoneType"),
        ("learned-temperature:heads=3", r"made for 3 heads, but is to serve 4 heads of model\.layers\.0\.self_attn"),
        (
            {"*.heads.0": normalizer("entmax:learn=true,heads=4")},
            r"made for 4 heads, but is to serve 1 heads of model\.layers\.0",
        ),
    ],
)
def test_refusals(what: object, message: str) -> None:
    with pytest.raises(AbbeError, match=message):
        swap(llama(), what)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("layers.1=topk:k=2", {"layers.1": "topk:k=2"}),
        (
            " layers.0.heads.1,3 = entmax:alpha=1.5,learn=true ;*=hybrid:a=softmax,b=sparsemax",
            {"layers.0.heads.1,3": "entmax:alpha=1.5,learn=true", "*": "hybrid:a=softmax,b=sparsemax"},
        ),
        ("layers.1=sparsemax; *=softmax ; ", {"layers.1": "sparsemax", "*": "softmax"}),
    ],
)
def test_a_line_of_rules_is_its_mapping(line: str, rules: dict[str, str]) -> None:
    assert rules_in(line) == rules
    assert groups(line) == groups(rules)


@pytest.mark.parametrize(
    "spec", ["sparsemax", "entmax:alpha=1.5", "hybrid:a=(sink:b=2),b=sparsemax", "file:a=b;c.safetensors", ""]
)
def test_a_spec_or_a_file_is_no_line_of_rules(spec: str) -> None:
    assert rules_in(spec) == spec


def test_many_layers_are_not_all_listed() -> None:
    with pytest.raises(AbbeError, match=r"layers: 0 .*, 5 [^,]*, \.\.\., 19 model\.layers\.19\.self_attn$"):
        swap(llama(num_hidden_layers=20), {"layers.20": "sparsemax"})


@pytest.mark.parametrize("spec", ["stick-breaking", "hybrid:a=softmax,b=stick-breaking"])
def test_causal_order_is_needed_where_the_normalizer_says_so(spec: str) -> None:
    expected = r"stick-breaking.* needs keys in causal order, and encoder\.layer\.0\.attention\.self has none"
    with pytest.raises(AbbeError, match=expected):
        swap(bert(), spec)
    for pattern, path in (("encoder*", r"encoder\.block\.0"), ("*EncDec*", r"decoder\.block\.0\.layer\.1")):
        with pytest.raises(AbbeError, match=rf"needs keys in causal order, and {path}\S* has none"):
            swap(t5(), {pattern: spec})
    with pytest.raises(AbbeError, match=r"and model\.layers\.0\.self_attn has none"):
        swap(llama(is_causal=False), spec)
    network = gpt2(add_cross_attention=True)
    network.transformer.h[0].crossattention.is_causal = True  # whatever that may mean
    with pytest.raises(AbbeError, match=r"and transformer\.h\.0\.crossattention has none"):
        swap(network, {"*crossattention": spec})
    swap(t5(), {"decoder.*.SelfAttention": spec}).restore()


# -- Plans: the same normalizers as a swap would install, with the model left as it is ---------------------------------

RULES = {"layers.1": "topk:k=2", "*.heads.0,3": "ssmax:learn=true"}


@pytest.mark.parametrize("what", ["sparsemax", "layers.0=topk:k=3; *=softmax", RULES, normalizer("entmax:alpha=1.2")])
def test_a_plan_is_what_a_swap_installs(what: str) -> None:
    network = llama(num_hidden_layers=3)
    planned = plan(network, what)
    with swap(network, what) as swapped:
        assert shown(planned) == shown(swapped.normalizers)
        assert planned.layers == swapped.layers == list(planned)
    assert len(planned) == 3
    assert sum(len(group.heads) for group in planned[planned.layers[0]]) == 4


def test_the_model_stays_as_it_is() -> None:
    network = gpt2()
    before, config = network(input_ids=tokens()).logits, network.config
    settings, names = copy.deepcopy(config.to_dict()), [name for name, _ in network.named_modules()]
    plan(network, RULES)
    assert network.config is config
    assert config.to_dict() == settings
    assert [name for name, _ in network.named_modules()] == names
    assert not any(module._forward_pre_hooks for module in network.modules())
    assert torch.equal(network(input_ids=tokens()).logits, before)


def test_a_model_in_use_can_be_planned_for() -> None:
    network = gpt2()
    with swap(network, "sparsemax"):
        assert {group.normalizer.name for (group,) in plan(network, "entmax").values() if group.normalizer} == {
            "entmax"
        }
    with tap(network):
        assert len(plan(network, "entmax")) == 2


def test_the_table() -> None:
    assert repr(plan(gpt2(n_layer=6, n_head=8), {"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax"})) == (
        "Plan for GPT2LMHeadModel, 6 layers\n"
        "layers  heads    normalizer  pattern\n"
        "0-2     0,4      sparsemax   *.heads.0,4\n"
        "0-2     1-3,5-7  unchanged\n"
        "3       0-7      topk:k=32   layers.3\n"
        "4-5     0,4      sparsemax   *.heads.0,4\n"
        "4-5     1-3,5-7  unchanged"
    )
    assert repr(plan(gpt2(n_layer=1), "sparsemax")).startswith("Plan for GPT2LMHeadModel, 1 layer\n")


def test_a_saved_plan_is_read_by_swap(tmp_path: Path) -> None:
    network, file = llama(), tmp_path / "plan.safetensors"
    planned = plan(network, RULES)
    planned.save(file)
    assert shown(plan(network, f"file:{file}")) == shown(planned)
    with swap(network, f"file:{file}") as swapped:
        assert shown(swapped.normalizers) == shown(planned)


def test_mistakes_are_those_of_swap() -> None:
    with pytest.raises(AbbeError, match="Linear calls none of"):
        plan(torch.nn.Linear(2, 2), "sparsemax")
    for network, what in ((llama(), {"layers.7": "sparsemax"}), (bert(), "stick-breaking"), (t5(), "entmx")):
        with pytest.raises(AbbeError) as wrong:
            swap(network, what)
        with pytest.raises(AbbeError) as planned:
            plan(network, what)
        assert str(planned.value) == str(wrong.value)
