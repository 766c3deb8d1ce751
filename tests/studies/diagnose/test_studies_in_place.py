"""Studies of a model with other normalizers in place: the baseline is the model as it stands."""

from __future__ import annotations

from typing import Any

import pytest

import abbe
from abbe import AbbeError

ENTMAX = "entmax:alpha=1.5"
QUIET: dict[str, Any] = {"progress": False}
SIDES: dict[str, Any] = {"lengths": 32, "windows": 3, "queries": 4, "sizes": 5, "progress": False}


def test_a_model_is_compared_with_itself_under_a_swap() -> None:
    by_name = abbe.diff("embedded", with_b=ENTMAX, **SIDES)
    assert by_name.names == ["abbe-gpt2-5M", f"abbe-gpt2-5M with {ENTMAX}"]
    model = abbe.load("embedded")
    assert abbe.diff(model, model, with_b=ENTMAX, **SIDES).table.equals(by_name.table)
    assert model.plan is None
    with abbe.swap(model, ENTMAX):
        assert abbe.diff("embedded", model, **SIDES).table.equals(by_name.table)
        same = abbe.diff("embedded", model, with_a=ENTMAX, **SIDES)
    assert "are the same" in same.findings[0].sentence


def test_a_swap_into_finished_runs_is_refused(tmp_path: Any) -> None:
    for name in ("a", "b"):
        abbe.diagnose(**SIDES, folder=tmp_path / name)
    with pytest.raises(AbbeError, match="nothing can be swapped in: name the models themselves"):
        abbe.diff(tmp_path / "a", tmp_path / "b", with_b=ENTMAX, progress=False)


def test_capacity_truncates_what_the_heads_compute_with() -> None:
    """Nothing is lost once all keys with a weight are kept: then the loss is that of the model as it stands."""
    model = abbe.load("embedded")
    with abbe.swap(model, ENTMAX):
        swapped = abbe.capacity(model, lengths=32, windows=2, grid="coarse", layers=False, **QUIET).curve
    plain = abbe.capacity(model, lengths=32, windows=2, grid="coarse", layers=False, **QUIET).curve
    assert abs(plain["baseline"][0] - swapped["baseline"][0]) > 1e-2
    for way in ("deletion", "renormalised"):
        most = swapped.filter(way=way).sort("n").tail(1)
        assert most["n"].item() < 32
        assert abs(most["rise"].item()) < 1e-6
        assert abs(swapped.filter(way=way).sort("n")["rise"][0]) > 1e-3


def test_a_comparison_starts_from_the_model_as_it_stands() -> None:
    model = abbe.load("embedded")
    options: dict[str, Any] = {"length": 32, "windows": 2, "queries": 4, "needle_lengths": 32, "prompts": 1} | QUIET
    plain = abbe.compare(model, normalizers=[ENTMAX], **options).table
    with abbe.swap(model, ENTMAX):
        swapped = abbe.compare(model, normalizers=["softmax", ENTMAX], **options).table
    losses = dict(swapped.select("normalizer", "loss").iter_rows())
    expected = dict(plain.select("normalizer", "loss").iter_rows())
    assert losses["baseline"] == expected[ENTMAX] == losses[ENTMAX]
    assert losses["softmax"] == pytest.approx(expected["baseline"], rel=1e-6)


def test_figure_4_is_about_softmax() -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, ENTMAX):
        with pytest.raises(AbbeError, match="figure 4: it is about softmax, and heads compute with others"):
            abbe.reproduce(model, figures="4", quick=True, **QUIET)
        made = abbe.reproduce(model, figures="2b,4", quick=True, queries=4, **QUIET)
    assert list(made.figures) == ["2b"]
    assert any("figure 4" in why for why in made.manifest["skipped"])


@pytest.mark.parametrize("study", [abbe.calibrate, abbe.lift])
def test_what_fits_to_softmax_needs_softmax(study: Any) -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, ENTMAX), pytest.raises(AbbeError, match=r"computes with other normalizers already \(entmax"):
        study(model, **QUIET)


def test_words_are_those_of_the_normalizers_in_place() -> None:
    model = abbe.load("embedded")
    with abbe.swap(model, ENTMAX):
        report = abbe.report(model, lengths=32, windows=2, queries=4, temperatures=(1.0,), **QUIET)
    assert any("Normalizers in place: entmax:alpha=1.5 in all heads." in line for line in report.view().about)
    verdicts = {finding.topic: finding for finding in report.verdicts}
    assert "holds for softmax only, and these heads use other normalizers" in verdicts["forced dispersion"].sentence
    assert "The ceiling is that of the normalizers in place" in verdicts["gradients"].rule
    assert not any("softmax row" in finding.rule for finding in (*report.verdicts, *report.advice))
    assert report.next_steps() == ()  # a command would load the model without the swap
    own = report.alternatives.filter(normalizer=ENTMAX)
    assert own["gain"].abs().max() == 0
