"""Experiments of the lab as page, charts, table and files, from made-up runs; their page in a real browser."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from chart_parts import charts_of, drawn, layer_rows, one_panel, printed
from lab_cases import LENGTHS, made_up
from page_in_browser import PHONE, WIDE, needs_browser, opener

import abbe
from abbe.lab import Experiment
from abbe.views import card

COMPARED: dict[str, Any] = {"temperatures": ("1",), "optimizers": ("adamw",), "qk_norm": False}
ALONE: dict[str, Any] = {
    "normalizers": ("softmax",), "temperatures": ("1",), "optimizers": ("adamw",), "rates": {"adamw": (0.01,)},
    "seeds": 1, "qk_norm": False, "fails": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def temperature() -> Experiment:
    return made_up()


@pytest.fixture(scope="module")
def charts(temperature: Experiment) -> dict[str, Any]:
    return charts_of(temperature)


def rows_drawn(chart: dict[str, Any], title: str, mark: str = "point") -> list[list[dict[str, Any]]]:
    """The rows of each layer of that mark."""
    return [layer_rows(chart, layer) for layer in one_panel(chart, title)["layer"] if layer["mark"]["type"] == mark]


def titles(chart: dict[str, Any]) -> list[str]:
    return [part["title"] for part in chart["concat"]]


def test_the_charts_of_each_experiment(charts: dict[str, Any]) -> None:
    names = ["accuracy", "rates", "curves-sgd", "curves-adamw", "sensitivity", "warning"]
    assert list(charts) == names
    assert list(charts_of(made_up("length", **COMPARED)))[:4] == ["lengths", "best", "rates", "curves"]
    assert list(charts_of(made_up("recall", **COMPARED)))[:3] == ["best", "rates", "curves"]


def test_accuracy_shows_every_seed_plain_and_controlled(charts: dict[str, Any]) -> None:
    chart = charts["accuracy"]
    sides = ("plain", "compensated control")
    assert titles(chart) == [f"{name}, {side}" for name in ("SGD", "AdamW") for side in sides]
    seeds, means = rows_drawn(chart, "AdamW, plain")
    assert len(seeds) == 3 * 3 * 3  # softmax, sparsemax and QK-norm, three temperatures, three seeds
    assert len(means) == 3 * 3
    of_softmax = [row["accuracy"] for row in seeds if (row["shown"], row["temperature"]) == ("softmax", "0.01")]
    (mean,) = [row["accuracy"] for row in means if (row["shown"], row["temperature"]) == ("softmax", "0.01")]
    assert mean == pytest.approx(sum(of_softmax) / 3, rel=1e-5)
    seeds, means = rows_drawn(chart, "AdamW, compensated control")
    assert {row["shown"] for row in means} == {"softmax", "sparsemax"}  # nothing can absorb a temperature after a norm
    assert {row["temperature"] for row in means} == {"1", "0.1", "0.01"}  # T = 1 is its own control


def test_rates_show_where_the_best_one_lies_and_what_diverged(charts: dict[str, Any]) -> None:
    chart = charts["rates"]
    assert len(titles(chart)) == 3 * 2
    ended, broken, _, rings = rows_drawn(chart, "softmax, SGD")
    assert {row["rate"] for row in broken} == {10.0}
    assert {row["ended"] for row in broken} == {4.8}  # counted with the first loss
    assert len(ended) + len(broken) == 5 * 3 * 3
    assert {(row["shown"], row["rate"]) for row in rings} == {("T = 1", 1.0), ("T = 0.1", 1.0), ("T = 0.01", 1.0)}


def test_curves_compare_the_baseline_with_the_lowest_temperature_at_one_rate(charts: dict[str, Any]) -> None:
    chart = charts["curves-adamw"]
    assert titles(chart)[:4] == [
        "training loss", "entropy, share of its ceiling", "largest logit", "separability N_s/N",
    ]  # fmt: skip
    lines, control = rows_drawn(chart, "separability N_s/N", "line")
    assert {row["shown"] for row in lines} == {"T = 1", "T = 0.01", "T = 0.01, compensated"}
    assert len(control) == len(lines)
    (lines,) = rows_drawn(chart, "largest logit", "line")
    assert max(row["value"] for row in lines if row["shown"] == "T = 0.01") == pytest.approx(4500)
    assert "learning rate 0.01, the best at T = 1" in chart["title"]["subtitle"][0]
    (bands, *_) = rows_drawn(chart, "training loss", "area")
    assert all(row["low"] <= row["value"] <= row["high"] for row in bands)


def test_warnings_stand_with_their_intervals(temperature: Experiment, charts: dict[str, Any]) -> None:
    chart = charts["warning"]
    (dots,) = rows_drawn(chart, "quantities of the monitor")
    assert len(dots) == 11
    (points,) = rows_drawn(chart, "alerts of the monitor, as they are")
    growth = {row["shown"]: row["share"] for row in points if row["signal"] == "logit above 100"}
    (expected,) = temperature.warnings.filter(pl.col("quantity") == "logit_growth_100").to_dicts()
    assert growth["failing runs warned"] == pytest.approx(expected["warned"], rel=1e-5)
    assert growth["healthy runs alarmed"] == pytest.approx(expected["false_alarms"], rel=1e-5)


def test_lengths_stand_beside_what_was_published() -> None:
    experiment = made_up("length", **COMPARED)
    chart = charts_of(experiment)["lengths"]
    assert titles(chart) == ["all, means over seeds", "entropy; dashed: equal weights", "softmax", "sparsemax"]
    equal, entropies = rows_drawn(chart, "entropy; dashed: equal weights", "line")
    assert [row["entropy"] for row in equal] == pytest.approx([math.log(n) for n in LENGTHS], rel=1e-5)
    means = {row["length"]: row["entropy"] for row in entropies if row["shown"] == "sparsemax"}
    assert means == pytest.approx({n: 0.5 * math.log(n) + 0.1 for n in LENGTHS}, rel=1e-5)
    lines = rows_drawn(chart, "all, means over seeds", "line")[0]
    published = {row["length"]: row["accuracy"] for row in lines if row["shown"] == "softmax, published"}
    assert published == {16: 0.986, 64: 0.943, 256: 0.813, 1024: 0.538, 4096: 0.226, 16384: 0.124}
    seeds = rows_drawn(chart, "softmax")[0]
    assert len(seeds) == 3 * len(LENGTHS)
    said = printed(experiment, 100)
    assert "softmax, published" in said
    assert "98.6 %" in said
    assert "16,384" in said
    assert "equal weights: ln n" in said
    assert f"{0.5 * math.log(16384) + 0.1:.2f}" in said


def test_the_hard_maximum_has_a_name_where_it_was_only_tested() -> None:
    name = "hard maximum on the trained softmax logits"
    some = COMPARED | {"normalizers": ("softmax", "topk:k=1")}
    experiment = made_up("length", **some)
    assert titles(charts_of(experiment)["lengths"])[2:] == ["softmax", name]
    assert name in " ".join(printed(experiment, 200).split())
    assert name not in printed(made_up("recall", **some), 200)  # trained with it


def test_choices_are_named_by_what_differs() -> None:
    chart = charts_of(made_up("text", temperatures=("1", "learned"), qk_norm=False))["best"]
    means = rows_drawn(chart, "accuracy on new data")[-1]
    assert [row["shown"] for row in means[:4]] == [
        "softmax, SGD", "softmax, learned T, SGD", "softmax, AdamW", "softmax, learned T, AdamW",
    ]  # fmt: skip


DIVERGED: dict[str, Any] = ALONE | {"optimizers": ("sgd",), "rates": {"sgd": (10.0,)}, "fails": True}
EDGES = {
    "two seeds": lambda: made_up(**ALONE | {"seeds": 2, "temperatures": ("1", "0.1", "learned", "geometric:1:0.1")}),
    "all diverged": lambda: made_up(**DIVERGED),
    "recall": lambda: made_up("recall", **COMPARED | {"optimizers": ("adamw", "sgd")}),
    "length": lambda: made_up("length", **COMPARED),
    "text, alone": lambda: made_up("text", **ALONE),
    "usual": made_up,
    "alone": lambda: made_up(**ALONE),
    "nothing failed": lambda: made_up(fails=False),
    "recall, all diverged": lambda: made_up("recall", **DIVERGED),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", EDGES)
def test_every_chart_can_be_drawn(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    for chart in charts_of(EDGES[name](), "dark").values():
        # An alert is called "NaN or infinity", which in a drawing would be a mistake.
        drawn(json.loads(json.dumps(chart).replace("NaN or infinity", "no number")), capfd)


def test_without_failures_there_is_nothing_to_warn_of() -> None:
    experiment = made_up(fails=False, normalizers=("softmax",), optimizers=("sgd",))
    assert experiment.warnings.is_empty()
    assert "warning" not in charts_of(experiment)
    assert "Early warning" not in printed(experiment, 100)


def test_the_terminal_says_statements_first(temperature: Experiment) -> None:
    said = printed(temperature, 100)
    assert said.index("Is low temperature hard") < said.index("Low <b>temperature</b>") < said.index("Accuracy at")
    for words in ("T 0.01 control", "SGD, softmax", "logit above 100", "entropy, risen", "@ 0.01"):
        assert words in said
    assert said.index("T 1") < said.index("T 0.1") < said.index("T 0.01")
    assert "…" not in printed(temperature, 80)
    assert "control:" not in printed(made_up(**ALONE), 100)  # where there is none


def test_the_page_escapes_what_it_is_given_and_folds_the_rules(tmp_path: Path) -> None:
    page = made_up(text="<script>x</script>", normalizers=("softmax",), optimizers=("sgd",), qk_norm=False).to_html(
        tmp_path / "train.html"
    )
    assert "<script>x</script>" not in page
    assert "&lt;b&gt;temperature&lt;/b&gt;" in page
    assert page.index("rule and numbers") < page.index("Charts</h2>")
    for words in ("Does the best learning rate move with T?", "Every choice", "Early warning", "rate sensitivity"):
        assert words in page
    assert "What it means</h2>" in page
    assert 'class="unseen">What it means' in made_up(**ALONE, findings=()).to_html(tmp_path / "silent.html")


def test_the_card_has_a_chart_without_a_script(temperature: Experiment) -> None:
    shown = card(temperature)
    assert "<svg" in shown
    assert "<script" not in shown
    assert "&lt;b&gt;temperature" in shown


def test_a_saved_experiment_has_the_same_page(temperature: Experiment, charts: dict[str, Any], tmp_path: Path) -> None:
    folder = temperature.save(tmp_path / "run")
    opened = abbe.open(folder)
    assert isinstance(opened, Experiment)
    same = replace(opened, manifest=temperature.manifest)
    assert printed(same, 100) == printed(temperature, 100)
    assert charts_of(same) == charts


@needs_browser
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("experiment", "viewport", "theme"),
    [("temperature", PHONE, "dark"), ("temperature", WIDE, "light"), ("length", PHONE, "light")],
)
def test_all_charts_are_drawn_and_a_rule_is_one_click_away(
    experiment: str, viewport: dict[str, int], theme: str, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "train.html"
    made_up(experiment, temperatures=("1", "0.1"), optimizers=("sgd",), text="a <b>task</b>").to_html(file)
    with opener(browser, file) as open_page:
        seen = open_page(theme, viewport).drawn(theme)
        page = seen.page
        assert len(seen.charts()) == 5
        last = "sensitivity" if experiment == "temperature" else "curves"
        page.get_by_role("navigation").get_by_role("link", name=last.capitalize()).click()
        page.wait_for_function("() => window.scrollY > 0")  # it scrolls smoothly
        rule = page.get_by_text("holds if accuracy falls by 10 %")
        assert not rule.is_visible()
        page.get_by_text("rule and numbers").first.click()
        assert rule.is_visible()
        assert page.get_by_text("small transformers; task: a <b>task</b>").is_visible()
        seen.fits()
        seen.quiet()
