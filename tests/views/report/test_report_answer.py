"""The answer in one sentence: which rule holds, what it names, and what it advises to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import made_up_report as made
import polars as pl
import pytest
import typer

from abbe.cli import app
from abbe.studies import Finding, HeadVerdict, Report
from abbe.views import page
from abbe.words.finding import NOT_LEARNED

UNLEARNED = (Finding(NOT_LEARNED, "s", "the rule of that verdict", {}),)


def report(kinds: Sequence[str], **changes: Any) -> Report:
    """Heads of these kinds, ten to a layer, without alternatives."""
    places = [divmod(i, 10) for i in range(len(kinds))]
    heads = tuple(
        HeadVerdict(layer, head, kind, "s", "r", {}) for (layer, head), kind in zip(places, kinds, strict=True)
    )
    none = made.alternatives([])
    parts: dict[str, Any] = {"heads": heads, "alternatives": none, "verdicts": (), "sample": None}
    return made.report(places, lengths=(64, 256, 1024), sizes=(5,), temperatures=(1.0,), **(parts | changes))


def grown(result: Report, crossings: dict[tuple[int, int], tuple[int | None, int | None]]) -> Report:
    names = ("layer", "head", "uniform_from", "random_from")
    rows = [dict(zip(names, (*place, *lengths), strict=True)) for place, lengths in crossings.items()]
    return replace(result, growth=Report.frame("growth").of(rows))


@pytest.mark.parametrize(
    ("kinds", "topic", "grade", "heads"),
    [
        (["sharp"] * 4 + ["selective"] * 6, "healthy", "good", ()),
        (["sharp"] * 8 + ["fading", "sink"], "healthy", "good", ((0, 8),)),
        (["sharp"] * 9 + ["not measured"], "healthy", "good", ((0, 9),)),
        (["sharp"] * 7 + ["fading"] * 3, "mixed", "look", ((0, 7), (0, 8), (0, 9))),
        (["sharp"] * 7 + ["sink"] * 3, "healthy", "good", ()),
        (["sharp"] * 8 + ["uniform", "blurred"], "healthy", "good", ((0, 8), (0, 9))),
        (["sharp"] * 5 + ["sink"] * 5, "sinks", "good", ()),
        (["sharp"] * 5 + ["fading"] * 5, "fading", "look", ()),
        (["sink"] * 6 + ["uniform"] * 4, "dispersing", "bad", ()),  # sinks do not hide the others
        (["sink"] * 5 + ["fading"] * 5, "fading", "look", ()),
        (["sink"] * 6 + ["fading"] * 4, "mixed", "look", ((0, 6), (0, 7), (0, 8), (0, 9))),
        (["not measured"] * 3, "not measured", "look", ()),
        ([], "not measured", "look", ()),
    ],
)
def test_the_answer(kinds: list[str], topic: str, grade: str, heads: tuple[tuple[int, int], ...]) -> None:
    reply = (report(kinds) if kinds else replace(report(["sharp"]), heads=())).answer
    assert (reply.topic, reply.grade, reply.heads) == (topic, grade, heads)
    assert reply.rule.endswith(".")


def test_a_sentence_names_six_heads_by_their_layers() -> None:
    sentence = report(["selective"] * 38 + ["fading"] * 8 + ["sink"] * 2).answer.sentence
    assert sentence == (
        "Healthy: 38 of 48 heads select, 2 are sinks, as is usual; 8 to look at: layer 3, heads 8 and 9; layer 4, "
        "heads 0, 1, 2 and 3, and 2 more."
    )
    assert report(["selective"]).answer.sentence == "Healthy: the only head selects."


SCATTERED = ["sharp"] * 7 + ["uniform"] * 2 + ["blurred"]
EVENLY = "weight their keys almost evenly or no better than at random"


@pytest.mark.parametrize(
    ("crossings", "sentence"),
    [
        (
            {(0, 7): (1024, 64), (0, 8): (1024, None), (0, 9): (None, 1024)},
            f"Dispersing beyond 256 tokens: 3 of 10 heads {EVENLY} from 1,024 tokens on.",
        ),
        (
            {(0, 7): (256, None), (0, 8): (256, None), (0, 9): (None, 64)},
            f"Dispersing beyond 64 tokens: 3 of 10 heads {EVENLY} from 256 tokens on.",
        ),
        (
            {(0, 7): (64, 64), (0, 8): (64, None), (0, 9): (None, 64)},
            f"Dispersing: 3 of 10 heads {EVENLY} at 64 tokens.",
        ),
        (  # heads that select at the largest length do not count, whatever they did before
            {(0, 0): (64, 64), (0, 1): (64, 64), (0, 2): (64, 64)},
            f"Dispersing beyond 256 tokens: 3 of 10 heads {EVENLY} from 1,024 tokens on.",
        ),
    ],
    ids=["at the end", "on the way", "from the start", "others before"],
)  # fmt: skip
def test_dispersing_names_the_length(
    crossings: dict[tuple[int, int], tuple[int | None, int | None]], sentence: str
) -> None:
    reply = grown(report(SCATTERED), crossings).answer
    assert (reply.grade, reply.sentence) == ("bad", sentence)


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (["uniform"] * 9 + ["sink"], "Hardly learned: 9 of 10 heads weight their keys almost evenly."),
        (["sink"] * 10, "Hardly learned: the next token is predicted no better than by guessing."),
    ],
)
def test_hardly_learned_comes_before_all_others(kinds: list[str], sentence: str) -> None:
    result = report(kinds, verdicts=UNLEARNED)
    reply = result.answer
    assert (reply.grade, reply.topic, reply.sentence) == ("bad", NOT_LEARNED, sentence)
    assert reply.rule == "the rule of that verdict"
    assert [step.command for step in result.next_steps()] == ["abbe report embedded"]


# What to do next


def alternatives(gains: dict[str, int]) -> pl.DataFrame:
    """So many of ten heads gain from each; the others from none."""
    rows = [
        (0, head, spec, 0.5, 0.2 if head < count else 0.0, 0.1 if head < count else -0.1, 0.1)
        for spec, count in gains.items()
        for head in range(10)
    ]
    names = ("layer", "head", "normalizer", "separable", "gain", "gain_low", "output_change")
    return Report.frame("alternatives").of(dict(zip(names, row, strict=True)) for row in rows)


def steps_of(result: Report) -> list[tuple[str, str]]:
    return [(step.words, step.command) for step in result.next_steps()]


GAINING = alternatives({"baseline": 0, "entmax:alpha=1.5": 4, "sparsemax": 0, "softmax:temperature=0.7": 9})
MODEL = "abbe {} gpt2-like --text TEXT.txt"


def test_no_gain_no_advice() -> None:
    none = alternatives({"baseline": 0, "sparsemax": 0, "softmax:temperature=0.7": 9})
    assert not any("compare" in command for _, command in steps_of(report(["sharp"] * 10, alternatives=none)))


@pytest.mark.parametrize(
    ("kinds", "spec"), [(["sink"] * 10, "softmax1"), (SCATTERED, "ssmax"), (["fading"] * 10, "ssmax")]
)
def test_what_is_wrong_comes_first_and_three_are_enough(kinds: list[str], spec: str) -> None:
    few = made.MANIFEST | {"settings": made.MANIFEST["settings"] | {"windows": 2}}
    steps = steps_of(report(kinds, alternatives=GAINING, manifest=few))
    assert [shlex.split(command)[1] for _, command in steps] == ["compare", "compare", "capacity"]
    assert f"--with {spec} " in steps[0][1]


def test_capacity_says_what_the_weight_says() -> None:
    table = made.table([(0, 0)], lengths=(64,), sizes=(5, 20, 50), temperatures=(1.0,))
    masses = pl.col("n").replace_strict({5: 0.6, 20: 0.93, 50: 0.99}, default=0.5, return_dtype=pl.Float64)
    for scale, words in ((1.0, "20 keys hold 93 %"), (0.5, "50 keys hold 50 %")):
        value = pl.when(pl.col("measure") == "top_mass").then(masses * scale).otherwise(pl.col("value"))
        steps = steps_of(report(["sharp"], table=table.with_columns(value.alias("value"))))
        assert steps[0][0].startswith(f"{words} of the weight on average; how many the loss needs")
        assert steps[0][1] == "abbe capacity gpt2-like --lengths 64 --no-layers --text TEXT.txt"


def test_a_model_without_a_loss_is_not_sent_to_studies_of_the_loss() -> None:
    encoder = made.MANIFEST | {"model": {"name": "minilm", "kind": "encoder"}}
    assert steps_of(report(["sink"] * 10, alternatives=GAINING, manifest=encoder)) == []
    silent = replace(made.sample([(0, 0)]), loss=None)
    assert steps_of(report(["sink"] * 10, alternatives=GAINING, sample=silent)) == []


@pytest.mark.parametrize(
    ("model", "text", "given"),
    [
        ({"name": "abbe-gpt2-5M", "source": "embedded"}, "embedded sample", ["embedded"]),
        ({"name": "org/some", "source": "org/some@main"}, "book.txt", ["org/some", "--text", "book.txt"]),
        ({"name": "./a b", "source": "a b"}, "a.txt + b c.md", ["./a b", "--text", "a.txt", "--text", "b c.md"]),
        ({"name": "GPT2LMHeadModel", "class": "GPT2LMHeadModel"}, "standard input", ["MODEL", "--text", "-"]),
        ({}, "my corpus", ["MODEL", "--text", "TEXT.txt"]),
    ],
)
def test_commands_name_the_model_and_the_text_and_are_ones_that_abbe_takes(
    model: dict[str, str], text: str, given: list[str]
) -> None:
    manifest = made.MANIFEST | {"model": {"kind": "decoder"} | model, "text": {"name": text}}
    manifest["settings"] = {"windows": 2}
    lines = [
        *steps_of(report(["sink"] * 10, alternatives=GAINING, manifest=manifest)),
        *steps_of(report(["sharp"] * 10, manifest=manifest)),
    ]
    commands: Any = typer.main.get_command(app)
    assert {shlex.split(command)[1] for _, command in lines} == {"compare", "capacity", "report"}
    for _, command in lines:
        program, name, *rest = shlex.split(command)
        assert program == "abbe"
        context = commands.commands[name].make_context(name, list(rest))  # refuses an option that is not there
        assert context.params["model"] == given[0]
        assert rest[len(rest) - len(given) + 1 :] == given[1:]


def test_the_report_with_more_windows_keeps_what_was_changed() -> None:
    usual = {
        "lengths": [64, 128, 256, 512, 1024],
        "queries": 64,
        "sizes": [1, 2, 5, 10, 20, 50, 100],
        "vectors": "value",
    }
    changed = {"lengths": [32, 64], "queries": "all", "sizes": [5], "vectors": "hidden", "seed": 3}
    for settings, kept in (
        (usual | {"seed": 0}, ""),
        (changed, "--lengths 32,64 --queries all --sizes 5 --vectors hidden "),
    ):
        few = made.MANIFEST | {"settings": settings | {"windows": 4}, "given": {"text": ["/a b/t.txt", "u.txt"]}}
        *_, (_, command) = steps_of(report(["sharp"], manifest=few))
        shared = f"{'--seed 3 ' if kept else ''}--text '/a b/t.txt' --text u.txt"
        assert command == f"abbe report gpt2-like --windows 8 {kept}--out abbe-report-8-windows {shared}"


def test_commands_of_a_page_show_no_path_of_this_machine() -> None:
    result = report(["sharp"] * 10, manifest=made.MANIFEST | {"model": {"name": "/home/ada/m", "kind": "decoder"}})
    assert "/home/ada/m" in steps_of(result)[0][1]
    assert "/home" not in page(result)
