"""`abbe.diff`: planted changes are found where they are, a model and itself are the same, and mistakes are one line."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
from chart_parts import printed
from polars.testing import assert_frame_equal
from safetensors.torch import load_file
from synthetic_run import MANIFEST

import abbe
from abbe import AbbeError, views
from abbe.measures import decay_exponent, weighted_decay_exponents
from abbe.models import wrap
from abbe.results import FORMAT
from abbe.runs.parts import Parts

QUICK: dict[str, Any] = {"windows": 6, "queries": 8, "lengths": 24, "sizes": (1, 5), "progress": False}


def planted(layer: int = 1, head: int = 2, factor: float = 2.5, name: str = "sharper") -> Any:
    """The tiny GPT-2 with the queries of one head scaled."""
    model = tiny_runs.model()
    attention: Any = model.network.transformer.h[layer].attn
    with torch.no_grad():
        attention.c_attn.weight[:, 8 * head : 8 * (head + 1)] *= factor
        attention.c_attn.bias[8 * head : 8 * (head + 1)] *= factor
    return dataclasses.replace(model, name=name)


@pytest.fixture(scope="module")
def sharper() -> abbe.Difference:
    return abbe.diff(tiny_runs.model(), planted(), tiny_runs.TEXT, **QUICK)


def test_a_planted_change_is_found_where_it_is(sharper: abbe.Difference) -> None:
    """In the last layer, so that no other head sees anything of it."""
    assert set(sharper.changed.select("layer", "head").iter_rows()) == {(1, 2)}
    assert (sharper.heads, sharper.names) == (8, ["tiny gpt2", "sharper"])
    others = sharper.of_heads.filter((pl.col("layer") != 1) | (pl.col("head") != 2))
    assert others["difference"].abs().max() < 1e-6
    assert {finding.topic for finding in sharper.findings} >= {"what changed", "largest changes", "layers"}
    assert sharper.findings[0].sentence.startswith("From tiny gpt2 to sharper 1 of 8 heads changes beyond chance")
    assert sharper.findings[0].heads == ((1, 2),)
    assert "Heads change in layer 1; layer 0 stays as before." in [one.sentence for one in sharper.findings]


def test_the_loss_stands_beside(sharper: abbe.Difference) -> None:
    row = sharper.table.filter(pl.col("measure") == "loss").row(0, named=True)
    assert row["difference"] == pytest.approx(row["second"] - row["first"])
    assert row["low"] <= row["difference"] <= row["high"]
    (finding,) = (one for one in sharper.findings if one.topic == "loss")
    assert finding.numbers["first"] == row["first"]
    assert finding.sentence.startswith("The loss ")


@pytest.mark.slow
def test_numbers_are_those_of_two_diagnoses(sharper: abbe.Difference) -> None:
    first, second = (
        abbe.diagnose(model, tiny_runs.TEXT, **QUICK).table.drop("low", "high", "limit", "control", "model")
        for model in (tiny_runs.model(), planted())
    )
    keys = ["layer", "head", "length", "n", "measure"]
    both = first.join(second, on=keys, how="inner", nulls_equal=True)
    # The largest row of all windows is another number than the mean of the windows' largest rows.
    rows = sharper.table.join(both, on=keys, how="inner", nulls_equal=True).filter(
        ~pl.col("measure").str.contains("_max|_p95")
    )
    assert len(rows) > 200
    np.testing.assert_allclose(rows["first"], rows["value"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rows["second"], rows["value_right"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(rows["difference"], rows["second"] - rows["first"], rtol=1e-6, atol=1e-9)
    inside = rows.filter(pl.col("low").is_not_null())
    assert bool((inside["low"] <= inside["difference"] + 1e-12).all())


def test_the_largest_changes_come_first(sharper: abbe.Difference) -> None:
    effects = sharper.changed["effect"].abs()
    assert effects.is_sorted(descending=True)
    flags = sharper.of_heads["changed"].to_list()
    assert flags == sorted(flags, reverse=True)
    assert sharper.table["head"].is_null().to_list() == sorted(sharper.table["head"].is_null().to_list())


def test_a_model_and_itself_are_the_same() -> None:
    same = abbe.diff(tiny_runs.model(), tiny_runs.model(), tiny_runs.TEXT, **QUICK)
    assert same.table["difference"].abs().max() == 0
    assert not same.table["changed"].any()
    assert same.names == ["tiny gpt2 (1)", "tiny gpt2 (2)"]
    assert "are the same: all" in same.findings[0].sentence


@pytest.mark.slow
def test_dtypes_are_named() -> None:
    half = wrap(tiny_models.gpt2(vocab_size=256).bfloat16(), tiny_models.byte_tokenizer(), "tiny gpt2")
    rounded = abbe.diff(tiny_runs.model(), half, tiny_runs.TEXT, **QUICK)
    assert rounded.names == ["tiny gpt2 (float32)", "tiny gpt2 (bfloat16)"]
    assert 0 < rounded.of_heads.filter(pl.col("measure") == "max_weight")["difference"].abs().max() < 0.1


@pytest.mark.slow
def test_what_is_measured_the_same_way_in_runs(sharper: abbe.Difference, tmp_path: Path) -> None:
    """Folders of diagnose give the same table as their models."""
    for name, model in (("a", tiny_runs.model()), ("b", planted())):
        abbe.diagnose(model, tiny_runs.TEXT, folder=tmp_path / name, **QUICK)
    runs = abbe.diff(tmp_path / "a", tmp_path / "b", folder=tmp_path / "diff")
    measured = sharper.table.filter(pl.col("measure") != "loss")  # a run has none
    columns = [name for name in measured.columns if name not in ("q_value", "changed")]
    assert_frame_equal(runs.table.select(columns), measured.select(columns))
    assert_frame_equal(runs.changed, sharper.changed)
    assert runs.names == ["a", "b"]
    assert_frame_equal(abbe.open(tmp_path / "diff").table, runs.table)
    with pytest.raises(AbbeError, match="a run cannot be compared with a model"):
        abbe.diff(tmp_path / "a", tiny_runs.model())
    with pytest.raises(AbbeError, match="leave the text out"):
        abbe.diff(tmp_path / "a", tmp_path / "b", tiny_runs.TEXT)
    abbe.diagnose(planted(), tiny_runs.TEXT, folder=tmp_path / "c", **(QUICK | {"seed": 1}))
    with pytest.raises(AbbeError, match=r"a and c were measured with different settings \(seed\)"):
        abbe.diff(tmp_path / "a", tmp_path / "c")
    (tmp_path / "b" / "windows" / "24-3.safetensors").unlink()
    with pytest.raises(AbbeError, match="lacks some of its windows"):
        abbe.diff(tmp_path / "a", tmp_path / "b")
    with pytest.raises(AbbeError, match="is a folder of `abbe diff`"):
        abbe.diff(tmp_path / "a", tmp_path / "diff")


def saved(folder: Path, factor: float) -> None:
    model = planted(factor=factor)
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_checkpoints_give_curves(tmp_path: Path) -> None:
    for step, factor in ((1000, 2.0), (50, 1.0), (200, 1.4)):
        saved(tmp_path / f"checkpoint-{step}", factor)
    (tmp_path / "logs").mkdir()
    over = abbe.diff(tmp_path, text=tiny_runs.TEXT, **QUICK)
    assert over.names == ["checkpoint-50", "checkpoint-200", "checkpoint-1000"]
    of_head = over.curves.filter(
        (pl.col("measure") == "max_weight") & (pl.col("layer") == 1) & (pl.col("head") == 2)
    ).sort("side")
    assert of_head["side"].to_list() == [0, 1, 2]
    assert of_head["value"].is_sorted()
    assert {(1, 2)} == set(over.changed.select("layer", "head").iter_rows())
    drawn = {path.stem for path in views.figures(over, tmp_path / "figures")}
    assert {"dispersion", "separability", "curves"} <= drawn
    some = abbe.diff(f"{tmp_path}/checkpoint-*0", text=tiny_runs.TEXT, **(QUICK | {"windows": 2}))
    assert some.names == over.names


def test_mistakes(tmp_path: Path) -> None:
    model = tiny_runs.model()
    for first, second, error in (
        (model, None, "there is only one model"),
        (str(tmp_path), None, "is neither a model nor a run, and holds no checkpoints"),
        (f"{tmp_path}/*", None, "matches no folder of a model or of a run"),
        (model, wrap(tiny_models.gpt2(vocab_size=256, n_layer=3), tiny_models.byte_tokenizer(), "deep"),
         "tiny gpt2 has 2 layers of 4 heads, deep has 3 layers of 4: diff compares head by head"),
    ):  # fmt: skip
        with pytest.raises(AbbeError, match=error.replace("*", r"\*")):
            abbe.diff(first, second, tiny_runs.TEXT, **QUICK)
    other = dataclasses.replace(abbe.load("embedded"), network=model.network, name="other words")
    with pytest.raises(AbbeError, match=r"cut the text into different tokens|knows only"):
        abbe.diff(model, other, tiny_runs.TEXT, **QUICK)


def test_page_terminal_and_json(sharper: abbe.Difference) -> None:
    page = sharper.to_html()
    assert "What changes from tiny gpt2 to sharper?" in page
    assert "<td>decay exponent</td>" in page
    assert "L = None" not in page
    content = json.loads(sharper.to_json())
    assert len(content["table"]) == len(sharper.table)
    assert "1 of 8 heads changed" in repr(sharper)
    lines = printed(sharper).splitlines()
    assert max(map(len, lines)) <= 80
    first = next(i for i, line in enumerate(lines) if line.startswith(" layer 1,"))
    assert lines[first + 1].startswith(" head 2")
    # A label is never cut into bits: only the longest ones take a third line.
    rows = [line for line in lines[first:] if line.strip()]
    assert (
        sum(line.startswith(" layer") for line in rows)
        >= len(rows[: rows.index(next(x for x in rows if "average" in x))]) / 3
    )


Records = list[dict[str, torch.Tensor]]


def of_records(first: Records, second: Records, **more: Any) -> abbe.Difference:
    """The difference of two finished runs, called a and b, whose windows of 64 tokens have these numbers."""
    options = {"lengths": 64, "windows": len(first), "queries": 16, "temperatures": 1.0, "resamples": 20} | more
    manifest = MANIFEST | {
        "format": FORMAT, "finished": True, "settings": tiny_runs.settings(**options).as_json(), "layers": [],
        "identity": {"digest": ""},
        "model": MANIFEST["model"] | {"fingerprint": ""}, "text": MANIFEST["text"] | {"fingerprint": ""},
        "windows": [{"length": 64, "index": place} for place in range(len(first))],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name, records in (("a", first), ("b", second)):
            abbe.Run(abbe.Run.frame().of([]), manifest).save(Path(folder, name))
            for place, record in enumerate(records):
                Parts(Path(folder, name), "").keep_tensors(f"windows/64-{place}", record)
        return abbe.diff(Path(folder, "a"), Path(folder, "b"))


def table_of(first: list[float], second: list[float]) -> pl.DataFrame:
    """One measure of two heads, whose windows have these numbers."""
    sides = (
        [{"entropy/value": torch.tensor([[x, 2 * x * x]], dtype=torch.float64)} for x in side]
        for side in (first, second)
    )
    return of_records(*sides).table.sort("layer", "head")


def test_p_values_are_those_of_the_paired_t_test() -> None:
    from scipy.stats import false_discovery_control, ttest_rel

    a, b = np.random.default_rng(0).normal(size=(2, 7))
    rows = table_of(a.tolist(), b.tolist()).filter(pl.col("head").is_not_null())
    p = [ttest_rel(a, b).pvalue, ttest_rel(2 * a * a, 2 * b * b).pvalue]
    np.testing.assert_allclose(rows["p_value"], p, rtol=1e-10)
    np.testing.assert_allclose(rows["q_value"], false_discovery_control(p), rtol=1e-10)


def test_p_values_without_a_spread() -> None:
    """Two windows that happen to agree prove nothing: the sign test has the last word where there is no spread."""
    for windows in (2, 4, 8):
        row = table_of([1.0] * windows, [1.5] * windows).row(0, named=True)
        assert row["p_value"] == 2.0 ** (1 - windows)
    assert table_of([1.0] * 4, [1.0] * 4)["p_value"].to_list() == [1.0] * 3
    assert table_of([1.0], [1.5])["p_value"].to_list() == [None] * 3


@pytest.mark.parametrize(("factor", "changed"), [(1e-7, False), (1e-3, True)])
def test_a_regular_difference_as_small_as_rounding_is_none(factor: float, changed: bool) -> None:
    windows = np.random.default_rng(0).uniform(1, 2, size=12)
    rows = table_of(windows.tolist(), (windows * (1 + factor)).tolist())
    assert rows["q_value"].max() < 0.01
    assert set(rows["changed"]) == {changed}


@pytest.mark.slow
def test_halves_of_one_text_hardly_differ() -> None:
    """Windows of one half stand beside windows of the other: whatever differs is chance, over ten pairings."""
    records = embedded_records()
    chance = np.random.default_rng(0)
    flagged, fitted, exponents = [], [], []
    for _ in range(10):
        order = chance.permutation(len(records))
        halves = ([records[i] for i in part] for part in np.split(order, 2))
        table = of_records(*halves).of_heads
        flagged.append(table.filter("changed").select("layer", "head").unique().height / 48)
        of_decay = table.filter(pl.col("measure") == "decay_exponent")
        fitted.append(len(of_decay.filter("changed")) / 48)
        exponents.append(float((of_decay["p_value"] < 0.05).mean()))
    assert np.mean(flagged) < 0.05
    assert np.mean(fitted) < 0.05
    assert np.mean(exponents) < 0.1  # single tests, none of them corrected, are near their level


def embedded_records() -> Records:
    """Of 32 windows of the sample, as a run keeps them."""
    with tempfile.TemporaryDirectory() as folder:
        abbe.diagnose("embedded", lengths=64, windows=32, queries=16, folder=folder, resamples=20, progress=False)
        return [load_file(path) for path in sorted(Path(folder, "windows").glob("*.safetensors"))]


def test_what_is_rounding_by_definition_never_changes(sharper: abbe.Difference) -> None:
    """One selected key holds all of its weight: whatever is left of the imbalance is rounding."""
    alone = sharper.table.filter((pl.col("measure") == "selected_divergence") & (pl.col("n") == 1))
    assert len(alone) > 0
    assert not alone["changed"].any()


# -- Decay exponents and critical N, which are no means over windows, on both sides -----------------------------------

LONGER: dict[str, Any] = QUICK | {"lengths": [16, 32], "sizes": (1, 2)}


@pytest.fixture(scope="module")
def longer() -> abbe.Difference:
    return abbe.diff(tiny_runs.model(), planted(), tiny_runs.TEXT, **LONGER)


@pytest.mark.slow
def test_exponents_are_those_of_two_diagnoses(longer: abbe.Difference) -> None:
    rows = longer.table.filter(pl.col("measure") == "decay_exponent")
    assert rows["length"].is_null().all()
    for column, model in (("first", tiny_runs.model()), ("second", planted())):
        table = abbe.diagnose(model, tiny_runs.TEXT, **LONGER).table.filter(pl.col("measure") == "decay_exponent")
        both = rows.join(table, on=["layer", "head"], nulls_equal=True)
        assert len(both) == 9  # eight heads, and their mean
        np.testing.assert_allclose(both[column], both["value"], rtol=1e-9)
    assert bool((rows["low"] <= rows["difference"]).all())
    assert bool((rows["difference"] <= rows["high"]).all())


@pytest.mark.slow
def test_the_planted_head_alone_changes(longer: abbe.Difference) -> None:
    heads = longer.of_heads.filter(pl.col("measure") == "decay_exponent")
    others = heads.filter((pl.col("layer") != 1) | (pl.col("head") != 2))
    assert others["difference"].abs().max() < 1e-6
    assert not others["changed"].any()
    (finding,) = (one for one in longer.findings if "exponent" in one.sentence and one.topic == "over lengths")
    mean = longer.table.filter((pl.col("measure") == "decay_exponent") & pl.col("head").is_null()).row(0, named=True)
    assert finding.numbers["difference"] == mean["difference"]
    assert finding.sentence.startswith("Decay exponent ")


def test_windows_that_count_twice_are_as_good_as_two() -> None:
    chance = torch.Generator().manual_seed(0)
    sums = {name: 1 + torch.rand(3, 2, generator=chance, dtype=torch.float64) for name in ("rows", "x", "y", "xy")}
    sums |= {"xx": sums["x"] ** 2 + 1, "smallest": torch.zeros(3, 2), "largest": torch.ones(3, 2)}
    counts = torch.tensor([[1, 1, 1], [2, 0, 1]])
    for row, places in zip(weighted_decay_exponents(sums, counts), ([0, 1, 2], [0, 0, 2]), strict=True):
        drawn = {name: x[places] for name, x in sums.items()}
        torch.testing.assert_close(row, decay_exponent(drawn, resamples=2)[0])


def distances(until: int, heads: int = 12, seed: int = 0) -> Records:
    """Windows in which sets smaller than `until` lie farther away than random ones."""
    chance = torch.Generator().manual_seed(seed)
    near = torch.tensor([float(size < until) for size in (1, 2, 4)], dtype=torch.float64)
    made = []
    for _ in range(8):
        noise = torch.randn(2, 1, heads, 3, generator=chance, dtype=torch.float64)
        made.append({"distance/value": noise[0] + 50 * near, "distance/control": noise[1]})
    return made


def critical(first: Records, second: Records) -> tuple[dict[str, Any], list[str]]:
    """The row of the finished table, and what was left out."""
    found = of_records(first, second, queries=8, sizes=(1, 2, 4), resamples=200)
    rows = found.table.filter(pl.col("measure").str.starts_with("critical_n")).to_dicts()
    why = [said.sentence for said in found.findings if said.topic == "not compared"]
    return (rows[0] if rows else {}), why


def test_critical_n_moves_as_planted() -> None:
    row, why = critical(distances(4), distances(2, seed=1))
    assert (row["first"], row["second"], row["difference"], row["length"]) == (4, 2, -2, 64)
    assert row["low"] <= row["high"] < 0
    assert (row["p_value"], row["q_value"], row["changed"]) == (None, None, True)  # by its interval alone
    assert why == ["The decay exponent is not compared: these runs did not keep the sums that it is fitted to."]
    same, _ = critical(distances(4), distances(4))
    assert (same["difference"], same["low"], same["high"], same["changed"]) == (0, 0, 0, False)


def test_what_has_no_critical_n_says_why() -> None:
    row, why = critical(distances(4), distances(9))
    assert row == {}
    assert why[1] == ("Critical N at 64 tokens is not compared: on b every selection up to N = 4 differs from random.")
    _, why = critical(distances(4, heads=2), distances(2, heads=2))
    assert why[1].endswith("with 2 heads the test cannot distinguish anything from chance.")
    with_nothing = [{key: x * torch.nan for key, x in one.items()} for one in distances(4)]
    assert critical(with_nothing, with_nothing)[1][1].endswith("no set size leaves keys out.")


@pytest.mark.slow
def test_an_encoder_needs_several_lengths() -> None:
    """All its queries see all keys, so windows of one length have one n."""
    models = [wrap(tiny_models.bert(vocab_size=256), tiny_models.byte_tokenizer(), "tiny bert") for _ in range(2)]
    second = dataclasses.replace(models[1], name="other")
    one = abbe.diff(models[0], second, tiny_runs.TEXT, **(LONGER | {"lengths": 16}))
    (finding,) = (said for said in one.findings if said.topic == "not compared" and "decay" in said.sentence)
    assert "all queries see the same number of keys; measure several lengths" in finding.sentence
    two = abbe.diff(models[0], second, tiny_runs.TEXT, **LONGER)
    assert len(two.table.filter(pl.col("measure") == "decay_exponent")) == 9
