"""reproduce on a tiny model: the protocol, the data of every figure, folders and mistakes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
from polars.testing import assert_frame_equal
from tiny_runs import TEXT, model, passes_of

import abbe
from abbe.models import wrap
from abbe.runs import window as _window
from abbe.studies import FIGURES, Reproduction

KINDS = ["embedding", "value"]


@pytest.fixture(scope="module")
def reproduction() -> Reproduction:
    return abbe.reproduce(model(), TEXT, windows=2, queries=6, progress=False)


# The protocol


def protocol(longest: int, **options: Any) -> dict[str, Any]:
    """The settings of all runs of a model with this context."""
    tiny = wrap(tiny_models.gpt2(vocab_size=256, n_positions=longest), tiny_models.byte_tokenizer(), "tiny")
    return abbe.reproduce(tiny, TEXT, windows=1, queries=2, progress=False, **options).manifest["runs"]


@pytest.mark.slow
def test_protocol_of_the_paper() -> None:
    runs = protocol(1024)
    assert list(runs) == [f"{name}-{kind}" for name in FIGURES for kind in KINDS if (name, kind) != ("4", "value")]
    lengths = [32, 64, 128, 256, 512, 1024]
    assert runs["2a-embedding"]["lengths"] == runs["2c-value"]["lengths"] == lengths
    assert runs["2a-embedding"]["sizes"] == [5]
    assert {1, 5, 10, 20, 100} <= set(runs["2b-embedding"]["sizes"])
    assert runs["4-embedding"]["steps"] == [1e-3, 1e-1, 10]
    assert (runs["4-embedding"]["temperatures"][0], runs["4-embedding"]["temperatures"][-1]) == (0.003, 10)
    for name in ("2b", "3", "4"):
        assert runs[f"{name}-embedding"]["lengths"] == [1024]
    for name in ("2b-embedding", "3-value"):  # sizes of one figure share their queries
        assert runs[name]["more_than"] == max(runs[name]["sizes"]) == 100


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("context", [64, 100])
def test_the_protocol_keeps_to_the_context(context: int, quick: bool) -> None:
    runs = protocol(context, quick=quick, figures=["3", "2c"])
    assert list(runs) == [f"{name}-{kind}" for name in ("2c", "3") for kind in KINDS]  # in the paper's order
    for settings in runs.values():
        assert max(settings["lengths"]) == 64
        assert max(settings["sizes"]) <= 32


# The data of the figures


def lines(table: pl.DataFrame, vectors: str, axis: str) -> dict[str, dict[int, float]]:
    chosen = table.filter(pl.col("vectors") == vectors)
    assert chosen.select("series", axis).is_duplicated().sum() == 0
    for _, part in chosen.group_by("series"):
        assert part[axis].is_sorted()
    names = chosen["series"].unique().to_list()
    return {name: dict(chosen.filter(pl.col("series") == name).select(axis, "value").iter_rows()) for name in names}


@pytest.mark.quick(1)
@pytest.mark.quick(2)
@pytest.mark.parametrize(("figure", "axis"), [("2a", "length"), ("2b", "n")])
@pytest.mark.parametrize("vectors", KINDS)
def test_distances(reproduction: Reproduction, figure: str, axis: str, vectors: str) -> None:
    table = reproduction.figures[figure].tables["distance"]
    assert table.columns == ["vectors", axis, "series", "value", "low", "high"]
    shown = lines(table, vectors, axis)
    assert set(shown) == {"selected", "random", "bound", "expected low", "expected high"}
    assert set(shown["selected"]) == ({32, 64} if axis == "length" else {1, 2, 5, 10, 20})
    for at, value in shown["selected"].items():
        assert 0 < value <= shown["bound"][at]
        assert shown["expected low"][at] <= shown["expected high"][at]
        # One random set a row, so the mean lies between the bounds up to its error.
        assert 0.7 * shown["expected low"][at] < shown["random"][at] < 1.3 * shown["expected high"][at]
    own = table.filter(pl.col("series") == "selected")
    assert (own["low"] <= own["value"]).all()
    assert (own["value"] <= own["high"]).all()


def test_distances_are_those_of_a_diagnosis(reproduction: Reproduction) -> None:
    options: Any = {"windows": 2, "queries": 6, "vectors": "embedding", "temperatures": (), "progress": False}
    run = abbe.diagnose(model(), TEXT, lengths=[32, 64], sizes=[5], **options)
    rows = run.table.filter((pl.col("measure") == "distance") & pl.col("head").is_null()).sort("length")
    shown = lines(reproduction.figures["2a"].tables["distance"], "embedding", "length")
    assert list(shown["selected"].values()) == rows["value"].to_list()
    assert list(shown["random"].values()) == rows["control"].to_list()
    assert list(shown["bound"].values()) == rows["limit"].to_list()


def test_critical_n(reproduction: Reproduction) -> None:
    tables = reproduction.figures["2c"].tables
    critical, tests = tables["critical"], tables["tests"]
    assert critical.columns == ["vectors", "length", "level", "critical_n", "low", "high", "largest_n"]
    assert critical.select("vectors", "length", "level").rows() == [
        (kind, length, level) for kind in KINDS for length in (32, 64) for level in (0.01, 0.05)
    ]
    assert tests.columns == ["vectors", "length", "n", "statistic", "p_value"]
    assert tests["statistic"].is_between(0, 1).all()
    assert tests["p_value"].is_between(0, 1).all()
    for row in critical.iter_rows(named=True):
        of_length = tests.filter((pl.col("vectors") == row["vectors"]) & (pl.col("length") == row["length"]))
        assert 2 * of_length["n"].max() <= row["length"]
        passing = of_length.filter(pl.col("p_value") > row["level"])["n"]
        assert row["critical_n"] == passing.min()
        assert row["largest_n"] == of_length["n"].max()


@pytest.mark.parametrize("vectors", KINDS)
def test_separability(reproduction: Reproduction, vectors: str) -> None:
    tables = reproduction.figures["3"].tables
    heads = tables["heads"].filter(pl.col("vectors") == vectors)
    assert heads.columns == ["vectors", "layer", "head", "n", "value", "control"]
    assert heads.select("layer", "head").n_unique() == reproduction.figures["3"].about["heads"] == 8
    assert heads["value"].is_between(0, 1).all()
    mean = lines(tables["mean"], vectors, "n")
    for n, value in mean["selected"].items():
        of_size = heads.filter(pl.col("n") == n)
        assert value == pytest.approx(of_size["value"].mean())
        assert mean["random"][n] == pytest.approx(of_size["control"].mean())
    assert mean["selected"][1] == 1  # one token is always separable


def test_sensitivity(reproduction: Reproduction) -> None:
    tables = reproduction.figures["4"].tables
    table, ceilings = tables["sensitivity"], tables["ceilings"]
    assert table.columns == ["temperature", "step", "direction", "statistic", "value"]
    assert set(table["step"]) == {None, 1e-3, 0.1, 10.0}
    keys = table.select("temperature", "step", "direction", "statistic")
    assert keys.is_duplicated().sum() == 0
    assert len(table) == 13 * (2 + 3 * 2) * 3
    joined = table.join(ceilings, on=["temperature", "step"], nulls_equal=True)
    assert len(joined) == len(table)
    assert (joined["value"] <= joined["true"] * (1 + 1e-4)).all()
    for row in ceilings.iter_rows(named=True):
        assert row["paper"] == pytest.approx(min(0.25 / row["temperature"], math.sqrt(2)))
        highest = min(0.5 / row["temperature"], math.sqrt(2) / (row["step"] or 1e-9))
        assert row["true"] <= highest * (1 + 1e-9)
    order = table.pivot("statistic", index=["temperature", "step", "direction"], values="value")
    assert (order["mean"] <= order["paper"]).all()
    assert (order["mean"] < order["paper"]).any()  # heads differ
    assert (order["paper"] <= order["max"] * (1 + 1e-6)).all()


@pytest.mark.slow
def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the random directions, which are drawn query by query."""
    options: dict[str, Any] = {"figures": ["4"], "windows": 1, "queries": 5, "progress": False}
    whole = abbe.reproduce(model(), TEXT, **options).figures["4"].tables["sensitivity"]
    monkeypatch.setattr(_window, "BLOCK", 600)
    parts = abbe.reproduce(model(), TEXT, **options).figures["4"].tables["sensitivity"]
    assert_frame_equal(parts, whole, rel_tol=1e-4, abs_tol=1e-7)


def test_drift(reproduction: Reproduction) -> None:
    tables = reproduction.figures["drift"].tables
    assert tables["by_size"].columns == ["n", "series", "value", "low", "high", "share"]
    assert tables["by_length"].columns == ["length", "series", "value", "low", "high", "share"]
    by_size = tables["by_size"].filter(pl.col("series") == "selected")
    assert by_size["n"].to_list() == [1, 2, 5, 10, 20]
    assert by_size["value"][0] == pytest.approx(0, abs=1e-6)
    assert by_size["share"][0] is None
    assert by_size["share"][3] == pytest.approx(by_size["value"][3] / math.log(10))
    assert (by_size["value"] <= by_size["n"].log() + 1e-6).all()
    by_length = tables["by_length"].filter(pl.col("series") == "selected")
    assert by_length["share"].to_list() == pytest.approx((by_length["value"] / math.log(5)).to_list())


def test_statements_and_times(reproduction: Reproduction) -> None:
    assert {claim.figure for claim in reproduction.claims} == {*FIGURES, "drift"}
    assert set(reproduction.seconds) == set(FIGURES)
    assert all(seconds > 0 for seconds in reproduction.seconds.values())
    saved = reproduction.as_json()
    assert saved["figure_seconds"] == reproduction.seconds
    assert saved["manifest"]["seconds"]["total"] == pytest.approx(sum(reproduction.seconds.values()), abs=0.01)
    assert reproduction.manifest["self_check"]["error"] < 1e-3


# Folders and mistakes


@pytest.mark.slow
def test_what_the_folder_holds_is_shown_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"windows": 2, "queries": 4, "progress": False, "folder": tmp_path}
    first = abbe.reproduce(model(), TEXT, figures=["2a", "2b"], **options)
    csv = pl.read_csv(tmp_path / "data" / "figure-2a-distance.csv")
    assert len(csv) == len(first.figures["2a"].tables["distance"])
    assert abbe.open_run(tmp_path / "runs" / "2a-value").table.height > 0
    part = abbe.reproduce(model(), TEXT, figures=["2b"], **options)
    assert set(part.figures) == {"2a", "2b", "drift"}


def test_both_kinds_of_vectors_come_from_one_pass_and_the_text_is_tokenised_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = model()
    passes = passes_of(tiny)
    cut: list[object] = []
    real = abbe.models.windows
    monkeypatch.setattr(abbe.models, "windows", lambda *given, **more: cut.append(given) or real(*given, **more))
    abbe.reproduce(tiny, TEXT, figures=["2b"], windows=2, queries=4, progress=False)
    assert len(cut) == 1
    assert len(passes) == 2 + 4 + 2  # the cost, the self-check, two windows


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("holds", "1 of 1 statements hold."),
        ("holds, does not hold", "1 of 2 statements hold, 1 does not."),
        ("cannot be judged, cannot be judged", "0 of 2 statements hold, 2 cannot be judged."),
        ("", "No statement was judged."),
    ],
)
def test_the_answer_counts_the_statements(reproduction: Reproduction, answers: str, words: str) -> None:
    claims = tuple(replace(reproduction.claims[0], answer=answer) for answer in answers.split(", ") if answer)
    assert replace(reproduction, claims=claims).answer == words


def test_a_quick_look_says_that_it_is_no_result(reproduction: Reproduction) -> None:
    assert "not a result" not in reproduction.answer
    settings = reproduction.manifest["settings"] | {"quick": True}
    quick = replace(reproduction, manifest={**reproduction.manifest, "settings": settings})
    assert quick.as_json()["answer"].removeprefix(reproduction.answer).startswith(" A quick look, not a result")
    assert quick.answer in repr(quick)
    assert len(repr(quick)) < 300


@pytest.mark.slow
def test_short_text_gives_shorter_windows() -> None:
    larger = wrap(tiny_models.gpt2(vocab_size=256, n_positions=256), tiny_models.byte_tokenizer(), "larger")
    short = abbe.Text("short", TEXT.content[:150])
    shorter = abbe.reproduce(larger, short, figures=["2a", "2b"], windows=2, queries=4, progress=False)
    assert shorter.figures["2b"].about["length"] == 128
    assert shorter.figures["2a"].about["lengths"] == [32, 64, 128]
    assert shorter.figures["2a"].about["windows"] == "1 to 2"
    assert any("256" in why for why in shorter.manifest["skipped"])
    with pytest.raises(abbe.AbbeError, match="room for windows of 32 tokens: the figures need at least 64"):
        abbe.reproduce(larger, abbe.Text("short", TEXT.content[:50]), progress=False)


def test_distance_for_sets_in_proportion_to_the_length(reproduction: Reproduction) -> None:
    table = reproduction.figures["2c"].tables["proportional"]
    assert table.select("vectors", "length", "n").rows() == [(kind, n * 8, n) for kind in KINDS for n in (4, 8)]


def test_mistakes() -> None:
    def message(*arguments: Any, **options: Any) -> str:
        with pytest.raises(abbe.AbbeError) as error:
            abbe.reproduce(*arguments, progress=False, **options)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "no figure 5" in message(model(), TEXT, figures=["5"])
    assert "no figure 5" in message(model(), TEXT, figures="2a, 5")
    assert "choose from 2a" in message(model(), TEXT, figures=[])
    assert "causal" in message(model("bert"), TEXT)
    assert "causal" in message(model("t5"), TEXT)
    short = wrap(tiny_models.gpt2(vocab_size=256, n_positions=48), tiny_models.byte_tokenizer(), "short")
    assert "room for windows of 32 tokens" in message(short, TEXT)
