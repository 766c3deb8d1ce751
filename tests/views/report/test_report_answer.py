"""The answer in one sentence: which rule holds, what it names, and what it advises to do next."""

from __future__ import annotations

import json
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
from abbe.words.finding import NOT_LEARNED

UNLEARNED = (Finding(NOT_LEARNED, "s", "the rule of that verdict", {}),)


def report(kinds: Sequence[str], **changes: Any) -> Report:
    """Heads of these kinds, ten to a layer, without alternatives."""
    places = [divmod(i, 10) for i in range(len(kinds))]
    heads = tuple(
        HeadVerdict(layer, head, kind, "s", "r", {}) for (layer, head), kind in zip(places, kinds, strict=True)
    )
    parts: dict[str, Any] = {"heads": heads, "alternatives": pl.DataFrame(), "verdicts": (), "sample": None}
    return made.report(places, lengths=(64, 256, 1024), sizes=(5,), temperatures=(1.0,), **(parts | changes))


def grown(result: Report, crossings: dict[tuple[int, int], tuple[int | None, int | None]]) -> Report:
    rows = [(*place, *lengths) for place, lengths in crossings.items()]
    schema = {"layer": pl.Int32, "head": pl.Int32, "uniform_from": pl.Int64, "random_from": pl.Int64}
    return replace(result, growth=pl.DataFrame(rows, schema=schema, orient="row"))


@pytest.mark.parametrize(
    ("kinds", "grade", "sentence"),
    [
        (["sharp"] * 4 + ["selective"] * 6, "good", "Healthy: all 10 heads select."),
        (
            ["sharp"] * 8 + ["fading", "sink"],
            "good",
            "Healthy: 8 of 10 heads select, 1 is a sink, as is usual; 1 to look at: layer 0, head 8.",
        ),
        (["sharp"] * 9 + ["not measured"], "good", "Healthy: 9 of 10 heads select; 1 to look at: layer 0, head 9."),
        (
            ["sharp"] * 7 + ["fading"] * 3,
            "look",
            "Mixed: 7 of 10 heads select; 3 to look at: layer 0, heads 7, 8 and 9.",
        ),
        (["sharp"] * 7 + ["sink"] * 3, "good", "Healthy: 7 of 10 heads select, 3 are sinks, as is usual."),
        (
            ["selective"] * 40 + ["fading"] * 8,
            "good",
            "Healthy: 40 of 48 heads select; 8 to look at: layer 4, heads 0, 1, 2, 3, 4 and 5, and 2 more.",
        ),
        (["selective"], "good", "Healthy: the only head selects."),
        (
            ["sharp"] * 5 + ["sink"] * 5,
            "good",
            "Sinks: 5 of 10 heads give more than half of the weight to the first token, as is usual.",
        ),
        (
            ["sharp"] * 5 + ["fading"] * 5,
            "look",
            "Fading with length: 5 of 10 heads fade at least half as fast as a uniform head.",
        ),
        (["not measured"] * 3, "look", "Not measured: no head gave a number."),
        ([], "look", "Not measured: no head gave a number."),
    ],
)  # fmt: skip
def test_the_sentence(kinds: list[str], grade: str, sentence: str) -> None:
    reply = (report(kinds) if kinds else replace(report(["sharp"]), heads=())).answer
    assert (reply.grade, reply.sentence) == (grade, sentence)
    assert reply.rule.endswith(".")


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


def test_dispersing_without_growth_names_no_length() -> None:
    reply = replace(report(SCATTERED), growth=pl.DataFrame()).answer
    assert reply.sentence == f"Dispersing: 3 of 10 heads {EVENLY}."


def test_two_scattered_heads_of_ten_are_to_look_at() -> None:
    assert report(["sharp"] * 8 + ["uniform", "blurred"]).answer.topic == "healthy"


def test_sinks_do_not_hide_that_the_others_disperse_or_fade() -> None:
    assert report(["sink"] * 6 + ["uniform"] * 4).answer.topic == "dispersing"
    assert report(["sink"] * 5 + ["fading"] * 5).answer.topic == "fading"
    assert report(["sink"] * 6 + ["fading"] * 4).answer.topic == "mixed"


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


def test_json_has_the_answer_and_its_commands() -> None:
    content = json.loads(json.dumps(report(["sharp"] * 9 + ["fading"]).as_json()["answer"]))
    assert content["sentence"] == "Healthy: 9 of 10 heads select; 1 to look at: layer 0, head 9."
    assert (content["grade"], content["topic"], content["heads"]) == ("good", "healthy", [[0, 9]])
    assert [list(step) for step in content["steps"]] == [["words", "command"]]


# What to do next


def alternatives(gains: dict[str, int]) -> pl.DataFrame:
    """So many of ten heads gain from each; the others from none."""
    rows = [
        (0, head, spec, 0.5, 0.2 if head < count else 0.0, 0.1 if head < count else -0.1, 0.1)
        for spec, count in gains.items()
        for head in range(10)
    ]
    names = ["layer", "head", "normalizer", "separable", "gain", "gain_low", "output_change"]
    return pl.DataFrame(rows, schema=names, orient="row")


def steps_of(result: Report) -> list[tuple[str, str]]:
    return [(step.words, step.command) for step in result.next_steps()]


GAINING = alternatives({"baseline": 0, "entmax:alpha=1.5": 4, "sparsemax": 0, "softmax:temperature=0.7": 9})
MODEL = "abbe {} gpt2-like --text TEXT.txt"


def test_a_gain_is_a_guess_with_its_test() -> None:
    ((words, command), _) = steps_of(report(["sharp"] * 10, alternatives=GAINING))
    assert words.startswith("4 of 10 heads could be sparser")
    assert "swapped in without calibration" in words
    assert command == "abbe compare gpt2-like --with entmax:alpha=1.5 --calibrate --length 1024 --text TEXT.txt"


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


def test_few_windows_are_named() -> None:
    for windows, words in ((1, "1 window gives no intervals"), (4, "Intervals from 4 windows are too narrow")):
        few = made.MANIFEST | {"settings": {"windows": windows}}
        (_, (sentence, command)) = steps_of(report(["sharp"], manifest=few))
        assert sentence.startswith(words)
        assert command.startswith("abbe report gpt2-like --windows 8 --out abbe-report-8-windows")


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


def test_paths_stay_out_where_the_manifest_does() -> None:
    result = report(["sharp"] * 10, manifest=made.MANIFEST | {"model": {"name": "/home/ada/m", "kind": "decoder"}})
    assert "/home/ada/m" in steps_of(result)[0][1]
    passed_on = made.MANIFEST | {"model": {"name": "m", "kind": "decoder"}}
    assert all("/home" not in step.command for step in result.next_steps(passed_on))
