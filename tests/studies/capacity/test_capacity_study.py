"""capacity: the whole study, its layers and targets, its files, what it costs, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import planted_capacity
import polars as pl
import pytest
import scipy.stats
import tiny_models
import tiny_runs
import torch
from capacity_runs import QUICK, WAYS, made
from chart_parts import charts_of, printed

import abbe
from abbe.models import LoadedModel, Window, wrap
from abbe.models import windows as cut_windows
from abbe.runs.loss import next_token_losses, window_losses
from abbe.studies import Capacity, capacity


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_every_family_has_all_parts(family: str) -> None:
    result = made(family)
    whole = result.table.filter(pl.col("layer").is_null())
    layers = len(result.manifest["layers"])
    assert whole.height == 8
    assert result.table.height == 8 + 16 * layers
    assert result.growth.height == 4 + 8 * layers
    assert result.correlation.height == 16
    assert result.table["first"].null_count() == 0
    whole_numbers = result.table["capacity"].ceil().cast(pl.Int32)
    assert ((result.table["first"] == whole_numbers) == result.table["monotone"]).all()
    assert (result.table["capacity"] <= result.table["length"] + 1).all()
    assert result.table["share"].to_list() == (result.table["capacity"] / result.table["length"]).to_list()
    assert result.table["separability"].is_between(0, 1).all()
    assert result.table["separability_n"].min() >= 2
    assert result.manifest["sinks"] == (family == "gpt-oss")
    assert {one.topic for one in result.findings} >= {"capacity", "growth", "layers", "geometry and function"}
    assert all(one.sentence.endswith(".") and one.rule.endswith(".") and one.numbers for one in result.findings)


def test_a_sink_is_one_more_key() -> None:
    """Sizes go on to L keys and the sink: only then no query of gpt-oss is touched."""
    model = tiny_runs.model("gpt-oss")
    cut = cut_windows(tiny_runs.TEXT, [12], 1, 0, tokenizer=model.tokenizer, context=model.context)
    own = float(window_losses(model, cut))
    with abbe.swap(model, "topk:k=13,renormalize=false"):
        assert float(window_losses(model, cut)) == pytest.approx(own, rel=1e-5)
    tried = made("gpt-oss", lengths=[8], tau=1e-9, layers=False).curve["n"]
    assert tried.max() == 8
    assert made("llama", lengths=[8], tau=1e-9, layers=False).curve["n"].max() == 7


def test_separability_is_that_of_diagnose_on_the_same_windows() -> None:
    result = made(tau=0.05)
    grid = sorted(result.table["separability_n"].unique().to_list())
    run = tiny_runs.run(sizes=grid, temperatures=(), **{key: QUICK[key] for key in ("windows", "queries", "resamples")})
    assert result.table["layer"].is_null().any()
    assert result.table["layer"].is_not_null().any()
    for row in result.table.iter_rows(named=True):
        rows = tiny_runs.pick(run.table, "separability", row["length"], of_heads=row["layer"] is not None)
        rows = rows.filter(pl.col("n") == row["separability_n"])
        if row["layer"] is not None:
            rows = rows.filter(pl.col("layer") == row["layer"])
        assert row["separability"] == pytest.approx(rows["value"].mean())
        assert row["control"] == pytest.approx(rows["control"].mean())


@pytest.mark.slow
def test_losses_are_paired_and_shared() -> None:
    """The own loss of a length is one number, and adding a tau changes no other row."""
    result, more = made(), made(tau=[0.01, 0.05, 0.2])
    assert result.curve.group_by("layer", "length", "way").agg(pl.col("baseline").n_unique())["baseline"].max() == 1
    kept = more.table.filter(pl.col("layer").is_null() & (pl.col("tau") < 0.1))
    mine = result.table.filter(pl.col("layer").is_null())
    assert kept["capacity"].to_list() == mine["capacity"].to_list()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must be numbers > 0"),
        ({"tau": [0.05, 0.05]}, "tau has duplicates"),
        ({"way": "cutting"}, "way is 'cutting', but must be one of deletion, renormalised"),
        ({"way": ["deletion", "deletion"]}, "way has duplicates"),
        ({"lengths": [16, 128]}, "window length 128 is above the model's context of 64 tokens"),
        ({"lengths": [1]}, "too short"),
        ({"layer_lengths": [16, 24]}, "layer_lengths has 24, but must be among the lengths: 16, 40$"),
        ({"layer_lengths": ["short", 16]}, "layer_lengths has 'short', but must be among the lengths: 16, 40$"),
        ({"layer_lengths": []}, "layer_lengths is empty: name some of the lengths 16, 40, or leave the layers out"),
        ({"layer_lengths": [16, 16]}, "layer_lengths has duplicates"),
        ({"layer_lengths": [16], "layers": False}, r"layer_lengths is \[16\], but layers are left out: give only one"),
        ({"targets": "last:0"}, "but must be all, or last:N with a whole number N >= 1, such as last:128"),
        ({"targets": "last:16"}, "but windows of 16 tokens have only 15 targets: name longer lengths"),
        *(
            ({"targets": wrong}, f"targets is {wrong!r}, but must be all")
            for wrong in ("last:x", "last:", "last:-3", "last:1.5", "first:3", "", 128, None)
        ),
    ],
)
def test_refusals(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=message) as refused:
        made(folder=tmp_path / "new", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_models_without_a_loss_are_refused(family: str) -> None:
    with pytest.raises(abbe.AbbeError, match="capacity needs a causal language model"):
        made(family)


def test_a_loss_of_zero_is_refused() -> None:
    model = planted_capacity.model(1)
    with torch.no_grad():
        model.network.lm_head.weight.mul_(100)
    with pytest.raises(abbe.AbbeError, match="has a loss of 0 at length 40: a rise relative to it is meaningless"):
        capacity(model, planted_capacity.TEXT, **QUICK)


def test_a_text_that_is_too_short_is_refused_by_its_length() -> None:
    model = wrap(tiny_models.gpt2(vocab_size=256), tiny_models.byte_tokenizer(), "tiny")
    with pytest.raises(abbe.AbbeError, match="short is too short for windows of 40 tokens"):
        capacity(model, abbe.Text("short", "only a few words here, no more"), **QUICK)


# -- Layers truncated alone, at several lengths and both ways ---------------------------------------------------------


CELLS = [(length, way) for length in (16, 40) for way in WAYS]


def of_layers(result: Capacity) -> pl.DataFrame:
    return result.table.filter(pl.col("layer").is_not_null())


def test_a_layer_that_does_nothing_needs_one_key_at_every_length_in_both_ways() -> None:
    study = capacity(planted_capacity.model(5, layers=2), planted_capacity.TEXT, **QUICK)
    rows = of_layers(study)
    assert sorted(rows["allowed"].unique()) == [0.005, 0.01, 0.025, 0.05]
    for length, way in CELLS:
        cell = rows.filter((pl.col("length") == length) & (pl.col("way") == way))
        assert cell.height == 8  # 2 layers, 2 taus, each with its equal share
        assert cell.filter(pl.col("layer") == 1)["capacity"].to_list() == [1] * 4
        first = cell.filter(pl.col("layer") == 0)["capacity"]  # between the sizes that were tried, 4 and 8
        assert first.is_between(4, 8, closed="right").all()
    assert rows.height == 8 * len(CELLS)
    assert any(one.sentence.startswith("Truncated alone at 40 tokens, renormalised, layer 0") for one in study.findings)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("count", "places"), [(2, [0, 2]), (1, [1])])
@pytest.mark.parametrize("kept", [False, True])
def test_layers_are_truncated_on_evenly_spaced_windows_of_every_length_and_way(
    count: int, places: list[int], kept: bool, tmp_path: Path
) -> None:
    """Own losses beside them are those of the same windows; truncated ones those of a swap by hand."""
    model = tiny_runs.model()
    cut = cut_windows(tiny_runs.TEXT, [16, 40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    options = {"layer_windows": count, "folder": tmp_path if kept else None}
    study = made(**options)
    if kept:
        study = made(**options)  # from the losses in the folder
    assert set(of_layers(study)["windows"]) == {count}
    for length, way in CELLS:
        some = [window for window in cut if window.length == length and window.index in places]
        own, flag = float(window_losses(model, some).mean()), "true" if way == "renormalised" else "false"
        rows = study.curve.filter(pl.col("layer").is_not_null() & (pl.col("length") == length) & (pl.col("way") == way))
        assert rows["baseline"].to_list() == pytest.approx([own] * rows.height)
        with abbe.swap(model, {"layers.1": f"topk:k=4,renormalize={flag}"}):
            truncated = float(window_losses(model, some).mean())
        assert rows.filter((pl.col("layer") == 1) & (pl.col("n") == 4))["loss"][0] == pytest.approx(truncated)


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("given", [[16], 16])
def test_layers_only_at_the_lengths_asked_for(given: Any) -> None:
    result = made(layer_lengths=given)
    assert set(of_layers(result)["length"]) == {16}
    assert set(result.table.filter(pl.col("layer").is_null())["length"]) == {16, 40}
    assert result.growth["layer"].null_count() == result.growth.height == 4
    assert set(result.correlation["length"]) == {16}
    assert any(one.sentence.startswith("Truncated alone at 16 tokens, renormalised") for one in result.findings)
    assert result.manifest["settings"]["layer_lengths"] == [16]
    whole = made()
    assert whole.manifest["settings"]["layer_lengths"] == [16, 40]
    assert of_layers(whole).filter(pl.col("length") == 16).equals(of_layers(result))


def test_no_layers_at_all() -> None:
    result = made(layers=False)
    assert of_layers(result).height == result.correlation.height == 0
    assert result.manifest["settings"]["layer_lengths"] == []
    assert {one.topic for one in result.findings} <= {"capacity", "growth", "not monotone"}


@pytest.mark.slow
def test_a_correlation_for_every_way_length_and_rise() -> None:
    result = made("gpt-oss", lengths=[12, 40], layer_windows=2)
    rows = of_layers(result)
    assert result.correlation.select("way", "length", "tau", "allowed").is_unique().all()
    assert result.correlation.height == 2 * 2 * 4
    for row in result.correlation.iter_rows(named=True):
        cell = rows.filter(*(pl.col(name) == row[name] for name in ("way", "length", "tau", "allowed"))).sort("layer")
        needed, share = cell["capacity"].to_list(), cell["separability"].to_list()
        assert row["layers"] == len(needed) == len(result.manifest["layers"])
        if row["correlation"] is not None:
            assert row["correlation"] == pytest.approx(scipy.stats.spearmanr(needed, share).statistic)
        model = result.table.filter(
            pl.col("layer").is_null(), *(pl.col(name) == row[name] for name in ("way", "length")), pl.col("tau") == 0.01
        )
        size = max(2, min(math.ceil(model["capacity"][0]), row["length"] // 2))
        assert set(cell["separability_n"]) == {size} == {row["separability_n"]}


def test_the_cost_counts_layers_at_their_lengths_and_in_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    made(lengths=[8, 16], layer_lengths=[16], tau=0.05, layer_windows=2, progress=True)
    layers = len(tiny_runs.model().network.transformer.h)
    of_model = 1 + 2 * 6, 1 + 2 * 5  # own; both ways: N = 1, 2, 4 (and 8), and two steps of the search
    tried = 2 * layers * 4  # N = 1 and 4, at most 2 and 8 beside them
    beside = 3 * 2, 3 * (8 + 16)  # separability: windows and tokens
    windows = 3 * sum(of_model) + 2 * tried + beside[0]
    tokens = 3 * (16 * of_model[0] + 8 * of_model[1]) + 2 * 16 * tried + beside[1]
    assert f"{windows} windows, {tokens:,} tokens: about" in (capsys.readouterr().err)
    made(lengths=[16], tau=0.05, layer_windows=5, way="deletion", progress=True)
    assert f"{3 * 7 + 3 * layers * 4 + 3} windows" in capsys.readouterr().err  # there are only three windows


# -- Targets: the losses are those of exactly the targets that are asked for ------------------------------------------


LENGTHS = [16, 40]
SPECS = {"deletion": "topk:k={},renormalize=false", "renormalised": "topk:k={},renormalize=true"}


def by_hand(model: LoadedModel, window: Window, last: int) -> float:
    """-ln p of each of the last targets, one after the other, from the logits of the whole window."""
    logits = model.network(input_ids=window.tokens[None]).logits[0].detach().double()
    tokens, total = window.tokens.tolist(), 0.0
    for target in range(len(tokens) - last, len(tokens)):
        row = logits[target - 1].tolist()
        total += math.log(sum(math.exp(x) for x in row)) - row[tokens[target]]
    return total / last


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["gpt2", "gpt-oss"])
@pytest.mark.parametrize("last", [1, 5, 15])
def test_losses_are_over_exactly_those_targets(family: str, last: int) -> None:
    """All losses of a study, own and truncated, in both ways, against sums by hand."""
    model = tiny_runs.model(family)
    result = made(family, targets=f"last:{last}", lengths=LENGTHS, tau=0.05, layers=False)
    cut = cut_windows(tiny_runs.TEXT, LENGTHS, QUICK["windows"], 0, tokenizer=model.tokenizer, context=model.context)
    for length in LENGTHS:
        windows = [window for window in cut if window.length == length]
        own = sum(by_hand(model, window, last) for window in windows) / len(windows)
        rows = result.curve.filter(pl.col("length") == length)
        assert rows["baseline"].to_list() == pytest.approx([own] * rows.height, rel=1e-5)
        row = rows.filter(pl.col("n") == 2).row(0, named=True)
        with abbe.swap(model, SPECS[row["way"]].format(2)):
            truncated = sum(by_hand(model, window, last) for window in windows) / len(windows)
        assert row["loss"] == pytest.approx(truncated, rel=1e-5)


def test_only_the_logits_that_are_scored_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a model over a large vocabulary costs more than its attention."""
    model, seen = tiny_runs.model("llama"), []
    head: Any = model.network.get_output_embeddings()
    handle = head.register_forward_hook(lambda _module, given, _out: seen.append(given[0].shape[1]))
    tokens = torch.arange(30) + 40
    some, whole = next_token_losses(model, tokens, 4), next_token_losses(model, tokens)
    handle.remove()
    assert seen == [5, 30]
    torch.testing.assert_close(some, whole[-4:], rtol=1e-6, atol=1e-6)


def test_layers_are_scored_on_the_same_targets() -> None:
    model = tiny_runs.model()
    result = made(targets="last:3", lengths=[16], tau=0.05, way="deletion", layer_windows=3)
    cut = cut_windows(tiny_runs.TEXT, [16], 3, 0, tokenizer=model.tokenizer, context=model.context)
    row = result.curve.filter(pl.col("layer") == 1).row(0, named=True)
    with abbe.swap(model, {"layers.1": SPECS["deletion"].format(row["n"])}):
        expected = sum(by_hand(model, window, 3) for window in cut) / 3
    assert row["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("targets", "words"), [("all", "all next tokens"), ("last:4", "the last 4 targets")])
def test_every_place_says_which_targets(targets: str, words: str) -> None:
    result = made(targets=targets, lengths=LENGTHS, layers=False)
    assert words in " ".join(printed(result).split())
    assert words in " ".join(charts_of(result)["capacity"]["title"]["subtitle"])
    capacity_rule = next(one.rule for one in result.findings if one.topic == "capacity")
    assert words in capacity_rule
    assert result.as_json()["manifest"]["settings"]["targets"] == targets


# -- Studies that were stopped and go on ------------------------------------------------------------------------------


def test_the_cost_is_that_of_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cost_printed(**options: Any) -> str:
        made(layers=False, lengths=[16], way="deletion", tau=0.05, progress=True, **options)
        return capsys.readouterr().err

    planned = 8  # the baseline's loss, N = 1, 2, 4 and 8, and two steps of the search; separability
    assert f"{3 * planned} windows, {48 * planned} tokens: about" in cost_printed()
    cost_printed(folder=tmp_path)
    assert "all windows were measured before" in cost_printed(folder=tmp_path)
    (tmp_path / "capacity.json").unlink()
    (tmp_path / "separability" / "windows" / "16-1.safetensors").unlink()
    kept = len(list((tmp_path / "losses").iterdir()))
    left = 3 * (planned - 1 - kept) + 1
    assert left >= 1
    counted = "1 window" if left == 1 else f"{left} windows"
    assert f"{counted}, {16 * left} tokens: about" in cost_printed(folder=tmp_path)


def test_check_and_cost_are_said_once_for_losses_and_separability(capsys: pytest.CaptureFixture[str]) -> None:
    made(layers=False, lengths=[16], progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["tiny gpt2", "tiny gpt2", "54 windows, 864 tokens"]
    assert "to measure with" in lines[0]
    assert "self-check error" in lines[1]


def test_losses_of_some_windows_are_taken_from_those_of_all(tmp_path: Path) -> None:
    """Layers are truncated on two of three windows: their baseline is known from the whole model."""

    def passes() -> int:
        model = tiny_runs.model()
        seen = tiny_runs.passes_of(model)
        short = {"lengths": [16], "tau": 0.05, "way": "deletion", "layer_windows": 2, "folder": tmp_path}
        capacity(model, tiny_runs.TEXT, **(QUICK | short))
        return len(seen)

    first = passes()
    parts = sorted(path.stem for path in (tmp_path / "losses").iterdir())
    layers = sum("layer" in part for part in parts)
    again = passes()
    assert first - again == 3 * (len(parts) - layers) + 2 * layers + 3  # and separability
    (tmp_path / "losses" / "16-baseline.json").unlink()
    assert passes() == again + 3


@pytest.mark.parametrize(
    ("targets", "lengths"),
    [("all", [128, 256, 512, 1024]), ("last:127", [128, 256, 512, 1024]), ("last:128", [256, 512, 1024])],
)
def test_lengths_that_are_not_named_are_long_enough(targets: str, lengths: list[int], tmp_path: Path) -> None:
    """`--targets last:128` works as it stands: the default lengths leave out windows of 128 tokens."""
    model = abbe.load("embedded")
    options: dict[str, Any] = {"targets": targets, "folder": tmp_path, "progress": False}
    assert tiny_runs.claimed(model, tmp_path, lambda: capacity(model, **options))["lengths"] == lengths
    with pytest.raises(abbe.AbbeError, match="windows of 64 tokens have only 63 targets"):
        made(targets="last:64", lengths=None)
