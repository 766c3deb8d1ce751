"""compare: every number against a closed form, brute force or a hand computation, and the rule on planted tables."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
from needle_models import TEXT, word_tokenizer
from polars.testing import assert_frame_equal

import abbe
from abbe import studies
from abbe.measures import bootstrap_interval
from abbe.measures._bootstrap import resampled_counts
from abbe.models import LoadedModel, swap, wrap
from abbe.models import windows as cut_windows
from abbe.normalizers import normalizer
from abbe.studies import _compare_study as study
from abbe.studies import compare
from abbe.studies._compare_calibrated import calibrated_swap, halves, kept_alpha
from abbe.studies._compare_parts import OWN, CompareSettings, Comparison, needle_lengths_for
from abbe.studies._compare_reading import SwapReader
from abbe.studies._compare_sensitivity import at_equal_selectivity, effective_tokens, matched_temperatures, theory
from abbe.studies._compare_speed import costs, peak_megabytes
from abbe.studies._compare_tables import capacities, losses
from abbe.studies._compare_truncated import Truncated, capacity, capacity_points, truncated_swap
from abbe.studies._loss import window_losses

QUICK: dict[str, Any] = {
    "alternatives": ["sparsemax", "topk:k=2"], "length": 40, "windows": 3, "queries": 6, "capacity_windows": 2,
    "needle_lengths": [31, 40], "prompts": 1, "resamples": 50, "progress": False,
}  # fmt: skip
SETTINGS = CompareSettings(("sparsemax",), 40, 3, 6, 2, 0.05, (31,), 1, False, 0, 0.95, 400)
TIMED = ("time_ratio", "seconds")


def word_model() -> LoadedModel:
    tokenizer = word_tokenizer()
    return wrap(tiny_models.gpt2(vocab_size=len(tokenizer)), tokenizer, "tiny")


def made(**options: Any) -> Comparison:
    return compare(word_model(), TEXT, **(QUICK | options))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return made()


def row(comparison: Comparison, name: str) -> dict[str, Any]:
    return comparison.table.filter(pl.col("normalizer") == name).row(0, named=True)


# -- The whole --------------------------------------------------------------------------------------------------------


def test_all_parts_are_there(found: Comparison) -> None:
    assert found.table["normalizer"].to_list() == [OWN, "sparsemax", "topk:k=2"]
    assert found.judgements["normalizer"].to_list() == ["sparsemax", "topk:k=2"]
    assert row(found, "topk:k=2")["matched_heads"] == 0  # two keys cannot be as flat as these heads
    known = found.table.drop("sensitivity_theory").filter(pl.col("matched_heads") > 0)
    assert known.height == 2
    assert known.null_count().sum_horizontal()[0] == 0
    assert set(found.needle["kind"].drop_nulls()) == {"key-value", "needle"}
    assert found.recommendation.topic == "recommendation"
    told = [line.split(":")[0] for line in found.manifest["skipped"]]  # this text has 24 words
    assert told == ["key-value prompts of 40 tokens", "needle prompts of 31 tokens", "needle prompts of 40 tokens"]
    json.dumps(found.as_json(), allow_nan=False)


def test_losses_are_those_of_the_swapped_model(found: Comparison) -> None:
    model = word_model()
    cut = cut_windows(TEXT, [40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    own = window_losses(model, cut)
    with swap(model, "topk:k=2"):
        other = window_losses(model, cut)
    assert row(found, OWN)["loss"] == pytest.approx(float(own.mean()), rel=1e-12)
    assert row(found, "topk:k=2")["loss"] == pytest.approx(float(other.mean()), rel=1e-12)
    assert row(found, "topk:k=2")["loss_change"] == pytest.approx(float((other - own).mean()), rel=1e-9)
    assert row(found, "topk:k=2")["perplexity"] == pytest.approx(float(other.mean().exp()), rel=1e-9)


def test_softmax_instead_of_own_changes_nothing() -> None:
    found = made(alternatives=["softmax"])
    own, same = row(found, OWN), row(found, "softmax")
    for name in ("loss_change", "loss_rise", "told_apart_gain"):
        assert same[name] == pytest.approx(0, abs=1e-5)
    for name in ("effective_tokens", "active", "zeros", "separability", "capacity", "sensitivity_ratio", "temperature"):
        assert same[name] == pytest.approx(own[name], rel=1e-3, abs=1e-9)
    assert same["capacity_ratio"] == pytest.approx(1, rel=1e-3)
    assert not found.judgements["tells_apart"][0]
    assert not found.judgements["retrieves"][0]


def test_same_seed_same_numbers(found: Comparison) -> None:
    assert_frame_equal(made().table.drop(TIMED), found.table.drop(TIMED))
    assert_frame_equal(made().needle, found.needle)
    other = made(seed=5)
    assert not other.table.drop(TIMED).equals(found.table.drop(TIMED))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_every_kind_of_causal_model(family: str) -> None:
    """Grouped heads, sliding windows, soft caps, and sinks, which count as one more key."""
    quick = QUICK | {"length": 32, "windows": 2, "needle_lengths": [16], "alternatives": ["entmax:alpha=1.5"]}
    found = compare(tiny_runs.model(family), tiny_runs.TEXT, **quick)
    other = row(found, "entmax:alpha=1.5")
    assert 0 < other["zeros"] < 1
    assert other["active"] < row(found, OWN)["active"]
    assert other["matched_heads"] > 0.5
    assert found.needle.is_empty()  # bytes are no words
    assert len(found.manifest["skipped"]) == 2


def test_one_window_has_no_intervals_and_proves_nothing() -> None:
    found = made(windows=1)
    assert found.table["loss_low"].is_null().all()
    assert found.table["capacity_high"].is_null().all()
    assert not found.judgements["affordable"].any()
    assert found.recommendation.sentence.startswith("Too few windows to tell")


# -- A folder ---------------------------------------------------------------------------------------------------------


def test_a_stopped_comparison_goes_on_and_ends_the_same(
    found: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(study, "margins", stop)
        with pytest.raises(KeyboardInterrupt):
            made(folder=tmp_path)
    kept = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert kept == sorted(f"{i}-{part}.json" for i in range(3) for part in ("windows", "capacity", "sensitivity"))

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(study, "SwapReader", never)
    went_on = made(folder=tmp_path)
    assert_frame_equal(went_on.table.drop(TIMED), found.table.drop(TIMED))
    assert_frame_equal(went_on.needle, found.needle)
    assert json.loads((tmp_path / "compare.json").read_text())["recommendation"]["rule"] == found.recommendation.rule
    assert made(folder=tmp_path).table.equals(went_on.table)  # also the times


def test_a_damaged_part_is_measured_again(found: Comparison, tmp_path: Path) -> None:
    made(folder=tmp_path)
    for name in ("1-windows.json", "2-needle.json"):
        (tmp_path / "parts" / name).write_text("{")
    assert_frame_equal(made(folder=tmp_path).table.drop(TIMED), found.table.drop(TIMED))


def test_another_comparison_in_the_folder_is_refused(tmp_path: Path) -> None:
    made(folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: alternatives\)"):
        made(folder=tmp_path, alternatives=["sparsemax"])


# -- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alternatives": []}, "there is nothing to compare with: name a normalizer, such as entmax:alpha=1.5"),
        ({"alternatives": ["entmx"]}, "unknown normalizer 'entmx'. Did you mean 'entmax'"),
        ({"alternatives": ["sparsemax", "sparsemax"]}, "sparsemax is given twice"),
        ({"length": 65}, "window length 65 is above the model's context of 64"),
        ({"needle_lengths": [65]}, "needle length 65 is above the model's context of 64"),
        ({"needle_lengths": [32, 16]}, "needle_lengths must be whole numbers in rising order"),
        ({"prompts": 0}, "prompts is 0, but must be a whole number >= 1"),
        ({"capacity_windows": 0}, "capacity_windows is 0"),
        ({"tau": 0.0}, "tau is 0.0, but must lie between 0 and 1"),
        ({"queries": 0}, "queries is 0"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(abbe.AbbeError, match=words.replace("(", r"\(")):
        made(**options)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_model_without_a_loss_is_refused(family: str) -> None:
    with pytest.raises(abbe.AbbeError, match="comparing normalizers needs a causal language model"):
        compare(tiny_runs.model(family), tiny_runs.TEXT, **QUICK)


def test_lengths_of_needles() -> None:
    assert needle_lengths_for(512, None, 1024) == (128, 256, 512, 1024)
    assert needle_lengths_for(512, None, 700) == (128, 256, 512)
    assert needle_lengths_for(40, None, 64) == (40,)
    assert needle_lengths_for(2048, None, None) == (128, 256, 512, 1024, 2048)


# -- Losses and capacity ----------------------------------------------------------------------------------------------


def test_paired_differences_by_hand() -> None:
    own, other = [4.0, 5.0, 3.0], [4.2, 5.4, 3.6]
    found = losses({"loss": other}, {"loss": own}, SETTINGS)
    change = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)
    ends = [float(end) for end in bootstrap_interval(change, 0.95, 400, 0)]
    assert found["loss_change"] == pytest.approx((0.4, *ends))
    assert found["loss_rise"][0] == pytest.approx(0.1)
    counts = resampled_counts(3, 400, 0)
    ratios = (counts @ change / (counts @ torch.tensor(own, dtype=torch.float64))).numpy()
    assert found["loss_rise"][1:] == pytest.approx((np.quantile(ratios, 0.025), np.quantile(ratios, 0.975)))
    assert found["perplexity"][0] == pytest.approx(torch.tensor(4.4).exp().item())


def test_a_loss_that_is_not_finite_is_null_not_left_out() -> None:
    found = losses({"loss": [4.0, None, 3.0]}, {"loss": [4.0, 5.0, 3.0]}, SETTINGS)
    assert all(math.isnan(x) for x in found["loss_rise"])


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "sigmoid"])
def test_truncated_keeps_the_largest_and_the_sum(spec: str) -> None:
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[..., 7] = -torch.inf
    full = normalizer(spec)(logits)
    found = Truncated(normalizer(spec), 3)(logits)
    for before, after in zip(full.view(-1, 9), found.view(-1, 9), strict=True):
        largest = sorted(range(9), key=lambda key: -before[key])[:3]
        kept = sum(float(before[key]) for key in largest)
        for key in range(9):
            expected = float(before[key]) * float(before.sum()) / kept if key in largest else 0.0
            assert float(after[key]) == pytest.approx(expected, abs=1e-12)
    assert torch.equal(Truncated(normalizer(spec), 9)(logits), full)
    if spec == "softmax":
        torch.testing.assert_close(found, normalizer("topk:k=3")(logits))


def test_a_truncated_swap_is_top_k() -> None:
    model = word_model()
    cut = cut_windows(TEXT, [40], 2, 0, tokenizer=model.tokenizer)
    with swap(model, truncated_swap(model, "softmax", 3)):
        found = window_losses(model, cut)
    with swap(model, "topk:k=3"):
        torch.testing.assert_close(found, window_losses(model, cut), rtol=1e-6, atol=1e-6)


def test_capacity_by_hand() -> None:
    """The rise is 1/N: it is 0.05 at 20, between the powers 16 and 32 on a straight line of the rise."""
    full = torch.tensor([4.0, 2.0], dtype=torch.float64)
    asked: list[int] = []

    def losses_with(keep: int) -> list[float]:
        asked.append(keep)
        return (full * (1 + 1 / keep)).tolist()

    points = capacity_points(losses_with, full, full, 0.05, 512)
    assert {16, 32} <= set(points)
    assert len(asked) <= 4
    counts = torch.ones(1, 2, dtype=torch.float64)
    expected = 16 * 2 ** ((1 / 16 - 0.05) / (1 / 16 - 1 / 32))
    assert float(capacity(points, full, full, counts, 0.05, 512)[0]) == pytest.approx(expected)
    everywhere = {2**k: losses_with(2**k) for k in range(9)}
    assert float(capacity(everywhere, full, full, counts, 0.05, 512)[0]) == pytest.approx(expected)


@pytest.mark.parametrize(("rise", "expected"), [(0.0, 1.0), (9.0, 512.0)])
def test_capacity_at_its_ends(rise: float, expected: float) -> None:
    full = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: (full * (1 + rise)).tolist(), full, full, 0.05, 512)
    found = float(capacity(points, full, full, torch.ones(1, 2, dtype=torch.float64), 0.05, 512)[0])
    assert found == pytest.approx(expected, rel=0.01)


def test_a_worse_one_earns_no_smaller_capacity() -> None:
    """2 % worse with all keys, and 1/N more with N of them: 0.05 over own is 0.03 over itself, which is at 1/0.03."""
    own = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: (own * (1.02 + 1 / keep)).tolist(), own * 1.02, own, 0.05, 512)
    assert {32, 64} <= set(points)
    found = capacity(points, own * 1.02, own, torch.ones(1, 2, dtype=torch.float64), 0.05, 512)
    assert float(found[0]) == pytest.approx(32 * 2 ** ((1 / 32 - 0.03) / (1 / 32 - 1 / 64)))


def test_above_the_allowed_rise_with_all_keys_there_is_no_capacity() -> None:
    own = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: pytest.fail("searched"), own * 1.06, own, 0.05, 512)
    assert points == {}
    record, before = {"full": (own * 1.06).tolist(), "points": {}}, {"full": own.tolist(), "points": {"1": [4.1, 2.1]}}
    found = capacities(record, before, SETTINGS)
    assert not any(math.isfinite(end) for ends in found.values() for end in ends)


def test_a_capacity_that_some_resamples_lack_has_no_upper_end() -> None:
    """4 % worse on average, but 12 % worse in the second window."""
    record, own = {"full": [4.0, 2.24], "points": {"1": [9.0, 9.0]}}, {"full": [4.0, 2.0], "points": {"1": [9.0, 9.0]}}
    found = capacities(record, own, SETTINGS)
    for name in ("capacity", "capacity_ratio"):
        value, low, high = found[name]
        assert math.isfinite(value)
        assert low <= value
        assert not math.isfinite(high)


def test_every_search_is_against_the_losses_of_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[float], list[float]]] = []

    def search(_losses_with: object, full: torch.Tensor, own: torch.Tensor, tau: float, longest: int) -> Any:
        seen.append((full.tolist(), own.tolist()))
        return {}

    monkeypatch.setattr(study, "capacity_points", search)
    made()
    model = word_model()
    cut = cut_windows(TEXT, [40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    expected = window_losses(model, cut)[:2].tolist()
    assert [own for _, own in seen] == [pytest.approx(expected)] * 3
    assert seen[1][0] != pytest.approx(expected, rel=1e-9)  # those of sparsemax


def test_the_largest_weights_of_top_k_are_those_of_softmax() -> None:
    """So its capacity is the same where it is well below k, whatever all k of them cost."""
    model = word_model()
    cut = cut_windows(TEXT, [40], 2, 0, tokenizer=model.tokenizer)
    found = []
    for spec in ("softmax", "topk:k=8"):
        with swap(model, truncated_swap(model, spec, 4)):
            found.append(window_losses(model, cut))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_capacities_take_windows_in_pairs() -> None:
    record = {"full": [4.0, 2.0], "points": {"1": [8.0, 2.1], "2": [4.1, 2.05]}}
    found = capacities(record, record, SETTINGS)
    assert found["capacity_ratio"] == (1.0, 1.0, 1.0)
    assert found["capacity"][1] < found["capacity"][0] < found["capacity"][2]


# -- Selectivity ------------------------------------------------------------------------------------------------------


def test_readings_of_a_swapped_model_by_brute_force() -> None:
    """The weights come from the swapped model's own states: taken by a second listener, read by plain loops."""
    model = word_model()
    window = cut_windows(TEXT, [40], 1, 0, tokenizer=model.tokenizer)[0]
    heads: list[dict[str, float]] = []

    def hear(call: Any, weights_of: Any) -> None:
        for head in weights_of(torch.arange(40)):
            sums = {"active": 0.0, "zeros": 0.0, "effective_tokens": 0.0}
            for query, weights in enumerate(head.double()):
                seen = weights[: query + 1]
                sums["active"] += int((seen > 0).sum())
                sums["zeros"] += int((seen == 0).sum()) / (query + 1)
                sums["effective_tokens"] += float(seen.sum() ** 2 / (seen**2).sum())
            heads.append({name: x / 40 for name, x in sums.items()})

    settings = CompareSettings(("sparsemax",), 40, 1, 40, 1, 0.05, (31,), 1, False, 0, 0.95, 50)
    with swap(model, "sparsemax") as swapped:
        swapped.listen(hear)
        found = SwapReader(model, swapped, settings.reading()).read(window)
        loss = float(window_losses(model, [window])[0])
    assert len(heads) >= 8
    for name in ("active", "zeros", "effective_tokens"):
        expected = sum(head[name] for head in heads[:8]) / 8  # two layers of four heads, in the first pass
        assert found[name] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(loss, rel=1e-9)


# -- Sensitivity at equal selectivity ---------------------------------------------------------------------------------


def random_logits(heads: int = 3) -> torch.Tensor:
    spread = torch.linspace(0.3, 3, heads)[:, None, None, None]
    return spread * torch.randn(heads, 2, 6, 30, generator=torch.Generator().manual_seed(4))


def test_temperature_of_a_softmax_that_is_already_scaled() -> None:
    logits = random_logits()
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer("softmax:temperature=2"), logits, target)
    assert matched.all()
    torch.testing.assert_close(temperature, torch.full_like(temperature, 0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "sparsemax", "topp:p=0.9"])
def test_matched_heads_are_as_selective_as_softmax(spec: str) -> None:
    logits = random_logits()
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer(spec), logits, target)
    assert matched.all()
    for head in range(3):  # by brute force
        rows = normalizer(spec)(logits[head].reshape(-1, 30) / temperature[head].float()).double()
        mean = sum(float(row.sum() ** 2 / (row**2).sum()) for row in rows) / len(rows)
        assert mean == pytest.approx(float(target[head]), rel=0.02)


def test_heads_that_cannot_be_so_flat_are_left_out() -> None:
    logits = random_logits()
    groups = {"layer": [SimpleNamespace(heads=(0, 1, 2), normalizer=normalizer("topk:k=4"))]}
    window = SimpleNamespace(length=30, index=0)
    settings = SETTINGS.reading()
    found = at_equal_selectivity({"layer": logits}, groups, settings, window)  # type: ignore[arg-type]
    reachable = int((effective_tokens(normalizer("softmax"), logits) <= 4).sum())
    assert found["heads"] == 3
    assert found["matched"] == reachable < 3
    assert len(found["alternative"]) == (2 if reachable else 0)


def test_sensitivity_is_the_spectral_norm_at_that_temperature() -> None:
    logits = random_logits(2)[:, :1, :1]
    groups = {"layer": [SimpleNamespace(heads=(0, 1), normalizer=normalizer("sparsemax"))]}
    window = SimpleNamespace(length=30, index=0)
    found = at_equal_selectivity({"layer": logits}, groups, SETTINGS.reading(), window)  # type: ignore[arg-type]
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer("sparsemax"), logits, target)
    norms = []
    for head in range(2):
        row = logits[head, 0, 0].double() / temperature[head]
        jacobian = normalizer("sparsemax").jacobian(row) / temperature[head]
        norms.append(float(torch.linalg.matrix_norm(jacobian, 2)))
    assert matched.all()
    assert found["alternative"] == pytest.approx([sum(norms) / 2], rel=1e-4)
    softmax = [normalizer("softmax").jacobian(logits[head, 0, 0].double()) for head in range(2)]
    own = sum(float(torch.linalg.matrix_norm(jacobian, 2)) for jacobian in softmax) / 2
    assert found["own"] == pytest.approx([own], rel=1e-4)


def test_theory_is_told_where_there_is_one() -> None:
    expected = abbe.bounds.sensitivity_at_equal_selectivity("entmax15", 512)
    assert theory("entmax:alpha=1.5", 512) == pytest.approx(float(expected))
    assert theory("topk:k=32", 512) is None


# -- Cost -------------------------------------------------------------------------------------------------------------


def test_peak_memory_of_known_work() -> None:
    def work() -> None:
        first = torch.zeros(1_000_000)
        del first
        second = torch.zeros(500_000)
        third = torch.zeros(750_000)
        del second, third

    assert peak_megabytes(work) == pytest.approx(5.0, rel=1e-3)


def test_the_profiler_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3"):
        if before is None:
            monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
        else:
            monkeypatch.setenv("KINETO_LOG_LEVEL", before)
        peak_megabytes(lambda: torch.zeros(10))
        assert os.environ.get("KINETO_LOG_LEVEL") == before


def test_costs_of_every_contender() -> None:
    model, passes = word_model(), []
    found = costs(model, TEXT_TOKENS, {OWN: None, "sparsemax": "sparsemax"}, lambda: passes.append(1))
    assert set(found["seconds"]) == set(found["megabytes"]) == {OWN, "sparsemax"}
    assert min(found["seconds"].values()) > 0
    assert len(passes) == 10
    assert not hasattr(model.network, "abbe_normalizers")  # restored


TEXT_TOKENS = torch.arange(10, 50)


# -- Calibration ------------------------------------------------------------------------------------------------------


def test_halves_share_no_word() -> None:
    first, second = halves(abbe.Text("book", "aa bb cc ddd ee"))
    assert (first.content, second.content) == ("aa bb cc", " ddd ee")
    assert second.name == "book"


def test_calibrated_alternatives_stand_beside_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, abbe.Text]] = []

    def calibrate(model: LoadedModel, spec: str, text: abbe.Text, **options: Any) -> Any:
        """Stands in for the real one: what it fits is always top-2."""
        asked.append((spec, text))
        path = Path(options["folder"]) / "fitted.safetensors"
        path.parent.mkdir(parents=True)
        with swap(model, "topk:k=2") as fitted:
            fitted.save(path)
        return SimpleNamespace(file=path)

    monkeypatch.setattr(studies, "calibrate", calibrate, raising=False)
    found = made(calibrate=True)
    names = found.table["normalizer"].to_list()
    assert names == [OWN, "sparsemax", "sparsemax, calibrated", "topk:k=2", "topk:k=2, calibrated"]
    same = [*("loss", "active", "capacity", "told_apart", "sensitivity", "needle_margin")]
    one, two = row(found, "sparsemax, calibrated"), row(found, "topk:k=2")
    assert [one[name] for name in same] == pytest.approx([two[name] for name in same])
    assert [spec for spec, _ in asked] == ["sparsemax", "topk:k=2"]
    assert row(found, "sparsemax")["sensitivity_theory"] is not None
    assert one["sensitivity_theory"] is None
    end = len(asked[0][1].content)
    assert TEXT.content.startswith(asked[0][1].content)
    assert all(window["start"] >= 0 for window in found.manifest["windows"])
    assert end < len(TEXT.content) * 0.51


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("entmax:alpha=1.5", "entmax:alpha=1.5,learn=false"),
        ("asentmax", "asentmax:learn=false"),
        ("hybrid:a=softmax,b=(entmax:alpha=1.5)", "hybrid:a=softmax,b=(entmax:alpha=1.5,learn=false)"),
        ("entmax:alpha=1.5,learn=true", "entmax:alpha=1.5,learn=true"),
        ("topk:k=2", "topk:k=2"),
    ],
)
def test_calibration_keeps_alpha_unless_told_to_learn_it(
    spec: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_alpha(spec) == asked
    seen: list[str] = []

    def calibrate(_model: object, spec: str, *_args: object, **_options: object) -> Any:
        seen.append(spec)
        return SimpleNamespace(file=tmp_path)

    monkeypatch.setattr(studies, "calibrate", calibrate, raising=False)
    calibrated_swap(word_model(), spec, TEXT, length=8, windows=1, seed=0, folder=tmp_path)
    assert seen == [asked]
