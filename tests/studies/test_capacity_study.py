"""capacity: planted set sizes, brute force, intervals of planted losses, stopped studies and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import planted_capacity
import polars as pl
import pytest
import scipy.stats
import tiny_models
import tiny_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import abbe
from abbe.models import windows as cut_windows
from abbe.models import wrap
from abbe.studies import Capacity, _capacity_losses, capacity
from abbe.studies._capacity_curves import Curve
from abbe.studies._capacity_findings import findings
from abbe.studies._capacity_geometry import common_size, correlation_table, shown_size
from abbe.studies._capacity_intervals import crossings, growth_exponent, least_whole, whole_interval
from abbe.studies._capacity_parts import CORRELATION_SCHEMA, GROWTH_SCHEMA, WAYS
from abbe.studies._capacity_ranks import least_p_value, rank_correlation
from abbe.studies._capacity_search import Sizes, bracket, is_monotone, search
from abbe.studies._capacity_settings import CapacitySettings
from abbe.studies._capacity_tables import capacity_table, growth_table, layer_rows, model_row
from abbe.studies._loss import window_losses

QUICK: dict[str, Any] = {"lengths": [16, 40], "windows": 3, "queries": 8, "resamples": 50, "progress": False}


def made(family: str = "gpt2", **options: Any) -> Capacity:
    return capacity(tiny_runs.model(family), tiny_runs.TEXT, **(QUICK | options))


def asked(**changed: Any) -> CapacitySettings:
    given: dict[str, Any] = {
        "lengths": (16, 40), "taus": (0.01, 0.05), "ways": WAYS, "windows": 3, "layers": True, "layer_windows": 2,
        "queries": 8, "seed": 0, "level": 0.95, "resamples": 200,
    }  # fmt: skip
    return CapacitySettings(**(given | changed))


# -- Planted and brute force ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needed", [1, 2, 5, 7, 8, 11])
def test_a_planted_set_size_is_found(needed: int) -> None:
    found = capacity(planted_capacity.model(needed), planted_capacity.TEXT, layers=False, **QUICK)
    assert found.table.height == 8  # 2 lengths, 2 ways, 2 taus
    assert set(found.table["capacity"]) == set(found.table["low"]) == set(found.table["high"]) == {needed}
    assert found.table["monotone"].all()
    assert found.growth["exponent"].to_list() == pytest.approx([0.0] * 4, abs=1e-12)
    assert found.correlation.height == 0


def test_a_layer_that_does_nothing_needs_one_key() -> None:
    found = capacity(planted_capacity.model(5, layers=2), planted_capacity.TEXT, **QUICK)
    of_layers = found.table.filter(pl.col("layer").is_not_null())
    assert of_layers.height == 8  # 2 layers, 2 taus, each with its equal share
    assert set(of_layers["length"]) == {40}
    assert set(of_layers["way"]) == {"renormalised"}
    assert sorted(of_layers["allowed"].unique()) == [0.005, 0.01, 0.025, 0.05]
    assert set(of_layers.filter(pl.col("layer") == 1)["capacity"]) == {1}
    first = of_layers.filter(pl.col("layer") == 0)["capacity"]  # between the sizes that were tried, 4 and 8
    assert first.is_between(4, 8).all()
    assert "Truncated alone, layer 0 needs most" in " ".join(one.sentence for one in found.findings)


def every_rise(model: abbe.LoadedModel, length: int, way: str) -> np.ndarray:
    """The rise at every N from 1 to L, without a search."""
    cut = cut_windows(abbe.read_text(), [length], 3, 0, tokenizer=model.tokenizer, context=model.context)
    own, flag = window_losses(model, cut).mean(), "true" if way == "renormalised" else "false"
    found = []
    for n in range(1, length + 1):
        with abbe.swap(model, f"topk:k={n},renormalize={flag}"):
            found.append(float(window_losses(model, cut).mean() / own - 1))
    return np.array(found)


@pytest.mark.parametrize("way", WAYS)
def test_search_gives_what_brute_force_gives(way: str) -> None:
    """Of a trained model; taus are chosen where its curve crosses them once."""
    model = abbe.load("embedded")
    rises = every_rise(model, 24, way)
    assert abs(rises[-1]) < 1e-6  # a query with at most N keys is untouched
    once = [n for n in range(1, 23) if rises[:n].min() > max(0, rises[n:].max()) + 1e-5]
    assert len(once) > 4, rises
    taus = [float((rises[:n].min() + max(0, rises[n:].max())) / 2) for n in once]
    found = capacity(model, tau=taus, way=way, layers=False, **(QUICK | {"lengths": [24]}))
    assert found.table["capacity"].to_list() == [n + 1 for n in reversed(once)]
    assert found.table["monotone"].all()
    evaluated = found.curve.select("n", "rise").rows()
    assert [rise for _, rise in evaluated] == pytest.approx([rises[n - 1] for n, _ in evaluated], abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=70), st.lists(st.floats(0.001, 0.9), min_size=1, max_size=3))
def test_monotone_rises_are_searched_exactly(drops: list[float], taus: list[float]) -> None:
    curve, untouched = sorted(drops, reverse=True), len(drops) + 1
    rises = searched(curve, taus, Sizes.every(untouched))
    for tau in taus:
        least = next((n for n, rise in enumerate(curve, 1) if rise <= tau), untouched)
        assert bracket(rises, tau, untouched) == (least - 1, least)
        assert is_monotone(rises, tau, untouched)
        sizes = sorted(rises)
        crossing = crossings(torch.tensor([rises[n] for n in sizes], dtype=torch.float64), sizes, untouched, tau)
        assert float(least_whole(crossing)) == least


@given(st.lists(st.floats(0, 1), min_size=1, max_size=70), st.floats(0.001, 0.9))
def test_what_is_not_monotone_holds_from_the_least_on(curve: list[float], tau: float) -> None:
    untouched = len(curve) + 1
    rises = searched(curve, [tau], Sizes.every(untouched))
    fails, holds = bracket(rises, tau, untouched)
    assert holds == fails + 1
    assert all(rise <= tau for n, rise in rises.items() if n >= holds)
    assert fails == 0 or curve[fails - 1] > tau
    assert is_monotone(rises, tau, untouched) == (not any(rise <= tau for n, rise in rises.items() if n < holds))
    assert holds + 1 >= untouched or holds + 1 in rises  # the size beyond was tried


def searched(curve: list[float], taus: list[float], sizes: Sizes) -> dict[int, float]:
    rises: dict[int, float] = {}
    for n in search(rises, taus, sizes):
        assert n not in rises
        rises[n] = curve[n - 1]
    return rises


def test_a_hole_above_the_crossing_moves_it() -> None:
    curve = [0.5, 0.3, 0.005, 0.2, 0.002] + [0.001] * 10
    rises = searched(curve, [0.01], Sizes.every(16))
    assert bracket(rises, 0.01, 16) == (4, 5)
    odd = [0.5, 0.005, 0.3, 0.3] + [0.001] * 11
    rises = searched(odd, [0.01], Sizes.every(16))
    assert bracket(rises, 0.01, 16) == (4, 5)
    assert not is_monotone(rises, 0.01, 16)
    assert bracket({1: math.nan, 2: 0.0}, 0.1, 4) == (1, 2)  # what is no number does not hold


def test_a_coarse_search_tries_powers_of_two_only() -> None:
    curve = [1 / n for n in range(1, 1024)]
    rises = searched(curve, [0.03, 0.004], Sizes.coarse(1024))
    assert sorted(rises) == [1, 4, 16, 32, 64, 128, 256]
    fine = searched(curve, [0.03, 0.004], Sizes.every(1024))
    assert {33, 34, 249, 250} <= set(fine)
    assert len(fine) <= 10 + 2 * 9


# -- Intervals --------------------------------------------------------------------------------------------------------


def curve_of(slopes: list[float], length: int = 64, way: str = "deletion", layer: int | None = None) -> Curve:
    """Own losses 1, 2, 3, ...; a window's rise at N is its slope over N, relative to its own loss."""
    own = torch.arange(1, len(slopes) + 1).double()
    sizes = tuple(range(1, length))
    rises = torch.tensor(slopes).double() / torch.tensor(sizes).double().unsqueeze(-1)
    return Curve(length, way, layer, length, sizes, own, own * (1 + rises))


def test_crossing_is_log_linear() -> None:
    rises = torch.tensor([0.4, 0.2, 0.1]).double()
    halfway = crossings(rises, [1, 4, 16], 64, 0.15)
    assert float(halfway) == pytest.approx(8.0)  # halfway between ln 4 and ln 16
    assert float(crossings(rises, [1, 4, 16], 64, 0.05)) == pytest.approx(32.0)  # all keys: no rise
    assert float(crossings(rises, [1, 4, 16], 64, 0.5)) == 1.0
    assert float(crossings(rises, [1, 4, 16], 64, 0.2)) == pytest.approx(4.0)
    broken = torch.tensor([0.1, math.inf, math.nan, 0.0]).double()
    assert float(crossings(broken, [1, 2, 4, 8], 64, 0.05)) == pytest.approx(8.0)


def test_equal_windows_have_an_interval_without_width() -> None:
    row = model_row(curve_of([0.19] * 4), 0.05, asked())
    assert (row["capacity"], row["low"], row["high"], row["share"]) == (4, 4, 4, 4 / 64)


def test_the_interval_is_that_of_resampled_pairs() -> None:
    """Against loops: draw windows, take own and truncated losses of the same ones, find the least N by counting."""
    slopes = [0.1, 0.35, 0.8, 0.05, 0.6]
    settings = asked(resamples=400, level=0.9)
    row = model_row(curve_of(slopes), 0.05, settings)
    drawn = torch.randint(5, (400, 5), generator=torch.Generator().manual_seed(settings.seed + 64)).tolist()
    least = []
    for places in drawn:
        own = sum(i + 1.0 for i in places)
        rise = [sum((i + 1.0) * slopes[i] / n for i in places) / own for n in range(1, 64)]
        least.append(next(n for n, one in enumerate(rise, 1) if one <= 0.05 + 1e-12))
    assert row["low"] == math.floor(np.quantile(least, 0.05))
    assert row["high"] == math.ceil(np.quantile(least, 0.95))
    assert row["low"] < row["capacity"] < row["high"]


@pytest.mark.parametrize(
    ("resampled", "level", "ends"),
    [
        ([4, 5], 0.5, (4, 5)),  # percentiles 4.25 and 4.75
        ([2, 4, 7, 9], 0.8, (2, 9)),  # 2.6 and 8.4
        ([1, 2, 3, 4, 5], 0.5, (2, 4)),  # whole already
        ([6, 6, 6], 0.9, (6, 6)),
    ],
)
def test_ends_of_whole_numbers_are_whole_and_outside(
    resampled: list[float], level: float, ends: tuple[float, float]
) -> None:
    assert whole_interval(torch.tensor(resampled).double(), level) == ends


def test_the_last_digit_does_not_widen_an_interval() -> None:
    places = torch.arange(1001).double()  # percentiles 50 and 950, but for the rounding of (1 - 0.9) / 2
    assert whole_interval(places, 0.9) == (50, 950)
    assert whole_interval(None, 0.9) == (None, None)


def test_one_window_has_no_interval() -> None:
    row = model_row(curve_of([0.19]), 0.05, asked())
    assert (row["capacity"], row["low"], row["high"]) == (4, None, None)
    found = made(windows=1, layers=False)
    for table in (found.table, found.curve, found.growth):
        assert table["low"].is_null().all()
        assert table["high"].is_null().all()


def test_growth_of_a_power_law() -> None:
    lengths = [64, 128, 256]
    found = growth_exponent(torch.tensor([[4.0, 8.0, 16.0], [7.0, 7.0, 7.0]]), lengths)
    assert found.tolist() == pytest.approx([1.0, 0.0])
    slope = scipy.stats.linregress(np.log(lengths), np.log([3, 9, 11])).slope
    assert float(growth_exponent(torch.tensor([3.0, 9.0, 11.0]), lengths)) == pytest.approx(slope)
    curves = [curve_of([0.0499 * length**0.5] * 3, length) for length in (64, 256)]
    table = growth_table(curves, asked(lengths=(64, 256), ways=("deletion",), taus=(0.05,)))
    assert table.rows() == [("deletion", 0.05, *[pytest.approx(0.5)] * 3, 2)]
    assert growth_table(curves[:1], asked(ways=("deletion",))).height == 0


# -- Rank correlation -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=3, max_size=7))
def test_rank_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    found = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert (found.value, found.p_value) == (None, None)
        return
    assert found.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert found.exact
    assert found.count == len(pairs)


def test_exact_p_value_is_that_of_scipy() -> None:
    x, y = [1.0, 5.0, 2.0, 2.0, 8.0, 3.0], [0.9, 0.2, 0.7, 0.8, 0.3, 0.1]
    exact = scipy.stats.permutation_test(
        (x,), lambda some: scipy.stats.spearmanr(some, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    found = rank_correlation(x, y)
    assert found.p_value == pytest.approx(exact.pvalue)
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).p_value == pytest.approx(2 / 24) == least_p_value(4)


def test_many_layers_are_permuted_by_a_seed() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=24).tolist()
    y = (np.array(x) + 2 * generator.normal(size=24)).tolist()
    found = rank_correlation(x, y, seed=3)
    assert not found.exact
    assert found == rank_correlation(x, y, seed=3)
    assert found.p_value == pytest.approx(scipy.stats.spearmanr(x, y).pvalue, abs=0.02)
    assert rank_correlation(x, x).p_value == pytest.approx(1 / 10_001)


def test_layers_without_separability_are_left_out() -> None:
    found = rank_correlation([1, 2, 3, 4], [0.1, math.nan, 0.3, 0.4])
    assert (found.count, found.value) == (3, pytest.approx(1.0))
    assert rank_correlation([1, 2], [1, 2]).value is None


# -- The whole study --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_every_family_has_all_parts(family: str) -> None:
    found = made(family)
    whole = found.table.filter(pl.col("layer").is_null())
    layers = len(found.manifest["layers"])
    assert whole.height == 8
    assert found.table.height == 8 + 4 * layers
    assert found.growth.height == 4
    assert found.correlation.height == 4
    assert (found.table["capacity"] <= found.table["length"] + 1).all()
    assert found.table["share"].to_list() == (found.table["capacity"] / found.table["length"]).to_list()
    assert found.table["separability"].is_between(0, 1).all()
    assert found.table["separability_n"].min() >= 2
    assert found.manifest["sinks"] == (family == "gpt-oss")
    assert {one.topic for one in found.findings} >= {"capacity", "growth", "layers", "geometry and function"}
    assert all(one.sentence.endswith(".") and one.rule.endswith(".") and one.numbers for one in found.findings)


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
    found = made(tau=0.05)
    grid = sorted(found.table["separability_n"].unique().to_list())
    run = tiny_runs.run(grid=grid, temperatures=(), **{key: QUICK[key] for key in ("windows", "queries", "resamples")})
    for row in found.table.iter_rows(named=True):
        rows = tiny_runs.pick(run.heads, "separability", row["length"], of_heads=row["layer"] is not None)
        rows = rows.filter(pl.col("n") == row["separability_n"])
        if row["layer"] is not None:
            rows = rows.filter(pl.col("layer") == row["layer"])
        assert row["separability"] == pytest.approx(rows["value"].mean())
        assert row["control"] == pytest.approx(rows["control"].mean())


def test_same_seed_same_study() -> None:
    first = made()
    assert_frame_equal(first.table, made().table)
    assert not first.curve.equals(made(seed=5).curve)


def test_losses_are_paired_and_shared() -> None:
    """The own loss of a length is one number, and adding a tau changes no other row."""
    found, more = made(), made(tau=[0.01, 0.05, 0.2])
    assert found.curve.group_by("layer", "length", "way").agg(pl.col("own").n_unique())["own"].max() == 1
    kept = more.table.filter(pl.col("layer").is_null() & (pl.col("tau") < 0.1))
    mine = found.table.filter(pl.col("layer").is_null())
    assert kept["capacity"].to_list() == mine["capacity"].to_list()


def test_layers_are_truncated_on_the_first_windows() -> None:
    """Own losses beside them are those of the same windows."""
    model = tiny_runs.model()
    cut = cut_windows(tiny_runs.TEXT, [16, 40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    first = float(window_losses(model, [window for window in cut if window.length == 40][:1]))
    found = made(layer_windows=1)
    of_layers = found.curve.filter(pl.col("layer").is_not_null())
    assert of_layers["own"].to_list() == pytest.approx([first] * of_layers.height)
    assert set(found.table.filter(pl.col("layer").is_not_null())["windows"]) == {1}
    with abbe.swap(model, {"layers.1": "topk:k=4"}):
        truncated = float(window_losses(model, [window for window in cut if window.length == 40][:1]))
    assert of_layers.filter((pl.col("layer") == 1) & (pl.col("n") == 4))["loss"][0] == pytest.approx(truncated)


def test_json_and_files(tmp_path: Path) -> None:
    found = made(folder=tmp_path)
    again = json.loads((tmp_path / "capacity.json").read_text())
    assert again == json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert pl.read_csv(tmp_path / "table.csv").height == found.table.height
    assert pl.read_csv(tmp_path / "curve.csv")["n"].to_list() == found.curve["n"].to_list()
    assert abbe.open_run(tmp_path / "separability").manifest["settings"]["lengths"] == [16, 40]


# -- Stopped and gone on ----------------------------------------------------------------------------------------------


def test_resumed_is_as_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seen = made(), []
    real = _capacity_losses.window_losses

    def stop(model: Any, windows: Any, on_window: Any = None) -> Any:
        seen.append(len(windows))
        if len(seen) == 20:
            raise KeyboardInterrupt
        return real(model, windows, on_window)

    with monkeypatch.context() as patched:
        patched.setattr(_capacity_losses, "window_losses", stop)
        with pytest.raises(KeyboardInterrupt):
            made(folder=tmp_path)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "losses").iterdir()}
    assert len(kept) == 19
    found = made(folder=tmp_path)
    for name in ("table", "curve", "growth", "correlation"):
        assert_frame_equal(getattr(found, name), getattr(whole, name))
    assert found.findings == whole.findings
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / "losses").iterdir()}.items()


def test_what_is_kept_is_not_evaluated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(folder=tmp_path)

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr(_capacity_losses, "window_losses", never)
    assert_frame_equal(made(folder=tmp_path).table, first.table)


def test_the_cost_is_that_of_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(**options: Any) -> str:
        made(layers=False, lengths=[16], way="deletion", tau=0.05, progress=True, **options)
        return capsys.readouterr().err

    planned = 7  # the own loss, N = 1, 2, 4 and 8, and two steps of the search
    assert f"{3 * planned} windows, {48 * planned} tokens: about" in told()
    told(folder=tmp_path)
    assert "all losses were evaluated before" in told(folder=tmp_path)
    (tmp_path / "capacity.json").unlink()
    kept = len(list((tmp_path / "losses").iterdir()))
    left = planned - kept
    assert left >= 0
    assert f"{3 * left} windows, {48 * left} tokens: about" in told(folder=tmp_path)


@pytest.mark.parametrize("content", ["{", '{"losses": [1.0]}', '{"losses": "no"}', "[]", None])
def test_a_damaged_loss_is_evaluated_again(tmp_path: Path, content: str | None) -> None:
    first = made(folder=tmp_path, layers=False)
    path = tmp_path / "losses" / "40-deletion-4.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    assert_frame_equal(made(folder=tmp_path, layers=False).table, first.table)
    assert len(json.loads(path.read_text())["losses"]) == 3


def test_another_study_in_the_folder_is_refused(tmp_path: Path) -> None:
    made(folder=tmp_path, layers=False)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: taus\)"):
        made(folder=tmp_path, layers=False, tau=0.2)


# -- Findings ---------------------------------------------------------------------------------------------------------


def told(capacities: list[float], shares: list[float]) -> str:
    """What is said about geometry for layers of these capacities and separabilities."""
    settings = asked(taus=(0.01,), ways=("renormalised",), lengths=(64,))
    rows = [model_row(curve_of([0.19] * 3, way="renormalised"), 0.01, settings)]
    for layer, (needed, share) in enumerate(zip(capacities, shares, strict=True)):
        row = layer_rows(curve_of([0.01] * 3, way="renormalised", layer=layer), len(shares), settings)[-1]
        rows.append({**row, "capacity": needed, "separability": share, "separability_n": 8})
    correlation = correlation_table(rows, settings)
    growth = pl.DataFrame(schema=GROWTH_SCHEMA)
    found = findings(capacity_table(rows), growth, correlation, settings)
    return next(one.sentence for one in found if one.topic == "geometry and function")


def test_geometry_that_predicts_function() -> None:
    up = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert told(up, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).startswith(
        "Geometry and function go together here: layers of higher separability need more keys"
    )
    assert "need fewer keys (rank correlation of capacity and separability -1.00, p = 0.0028)" in told(
        up, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    )
    weak = told(up, [0.3, 0.1, 0.5, 0.2, 0.6, 0.25])
    assert weak.startswith("No relation between separability and capacity can be shown with 6 layers (")


def test_too_few_layers_cannot_show_a_relation() -> None:
    assert "whatever the numbers, as so few layers" in told([1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, 0.4])
    assert told([1.0, 2.0], [0.1, 0.2]).endswith("cannot be judged: too few layers.")
    assert told([1.0, 1.0, 1.0], [0.1, 0.2, 0.3]).endswith("cannot be judged: all layers are equal in one of the two.")


@pytest.mark.parametrize(
    ("exponent", "low", "high", "words"),
    [
        (0.5, 0.3, 0.7, "the smaller the part of it that is needed"),
        (0.1, -0.2, 0.3, "no growth with the length can be shown"),
        (0.9, 0.7, 1.2, "it grows, and no change of its share"),
        (1.4, 1.2, 1.6, "the larger the part that is needed"),
        (-0.3, -0.5, -0.1, "longer texts need less"),
        (0.5, None, None, "the smaller the part of it that is needed"),
    ],
)
def test_growth_in_words(exponent: float, low: float | None, high: float | None, words: str) -> None:
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64, 128), layers=False)
    rows = [model_row(curve_of([0.19] * 3, length), 0.05, settings) for length in (64, 128)]
    growth = pl.DataFrame([("deletion", 0.05, exponent, low, high, 2)], schema=GROWTH_SCHEMA, orient="row")
    found = findings(capacity_table(rows), growth, pl.DataFrame(schema=CORRELATION_SCHEMA), settings)
    assert [one.topic for one in found] == ["capacity", "growth"]
    assert words in found[1].sentence
    assert "It is 6 % of 64 tokens, 3 % of 128" in found[1].sentence
    assert "4 keys (4 to 4) for a rise of at most 5 %" in found[0].sentence


def test_a_curve_that_is_not_monotone_is_told() -> None:
    curve = curve_of([0.19] * 3)
    curve.truncated[0] = curve.own  # one key is fine, two are not
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64,), layers=False)
    row = model_row(curve, 0.05, settings)
    assert (row["capacity"], row["monotone"]) == (4, False)
    empty = pl.DataFrame(schema=GROWTH_SCHEMA), pl.DataFrame(schema=CORRELATION_SCHEMA)
    found = findings(capacity_table([row]), *empty, settings)
    assert found[-1].topic == "not monotone"


def test_separability_is_shown_at_the_same_size() -> None:
    assert [shown_size(n, 64) for n in (1, 2, 7, 7.2, 60)] == [2, 2, 7, 8, 32]
    settings = asked(taus=(0.05, 0.1), ways=("deletion",), lengths=(64, 128))
    rows = [model_row(curve_of([0.19] * 3, length), tau, settings) for length in (64, 128) for tau in (0.05, 0.1)]
    assert common_size(rows, settings) == 4


# -- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must be numbers > 0"),
        ({"tau": [0.01, -1.0]}, "tau must be numbers > 0"),
        ({"tau": [math.nan]}, "tau must be numbers > 0"),
        ({"tau": []}, "tau must be numbers > 0"),
        ({"tau": "much"}, "tau must be numbers > 0"),
        ({"tau": [0.05, 0.05]}, "tau has duplicates"),
        ({"way": "cutting"}, "way is 'cutting', but must be one of deletion, renormalised"),
        ({"way": ["deletion", "deletion"]}, "way has duplicates"),
        ({"lengths": [16, 128]}, "window length 128 is above the model's context of 64 tokens"),
        ({"lengths": [1]}, "too short"),
        ({"windows": 0}, "at least 1 window"),
        ({"layer_windows": 0}, "layer_windows is 0"),
        ({"queries": 0}, "queries is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=message):
        made(folder=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_models_without_a_loss_are_refused(family: str) -> None:
    with pytest.raises(abbe.AbbeError, match="capacity needs a causal language model"):
        made(family)


def test_a_loss_of_zero_is_refused() -> None:
    model = planted_capacity.model(1)
    with torch.no_grad():
        model.network.lm_head.weight.mul_(100)
    with pytest.raises(abbe.AbbeError, match="has a loss of 0 at length 40: a rise relative to it has no meaning"):
        capacity(model, planted_capacity.TEXT, **QUICK)


def test_a_text_that_is_too_short_is_refused_by_its_length() -> None:
    model = wrap(tiny_models.gpt2(vocab_size=256), tiny_models.byte_tokenizer(), "tiny")
    with pytest.raises(abbe.AbbeError, match="short is too short for windows of 40 tokens"):
        capacity(model, abbe.Text("short", "only a few words here, no more"), **QUICK)
