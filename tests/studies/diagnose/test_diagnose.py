"""diagnose: the whole way from text to table, against the straightforward way."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
from plain import plain_diagnosis
from polars.testing import assert_frame_equal
from tiny_runs import BUILDERS, QUICK, TEXT, model, pick, run, settings, shared_run

import abbe
from abbe.results import SCHEMA
from abbe.runs import window as _window

# Against the straightforward way


@pytest.fixture(scope="module")
def compared() -> tuple[pl.DataFrame, list[dict[str, torch.Tensor]]]:
    """All queries of two windows, and the same by loops over an eager model."""
    tiny = model()
    result = abbe.diagnose(tiny, TEXT, lengths=[40], **(QUICK | {"queries": "all", "windows": 2}))
    twin = tiny_models.eager_twin(tiny.network)
    cut = abbe.windows(TEXT, [40], 2, 0, tokenizer=tiny.tokenizer)
    return result.table, [plain_diagnosis(twin, one.tokens, (1, 2, 5), range(40)) for one in cut]


ROWS = ["previous_token", "induction", "entropy", "effective_tokens", "max_weight", "sink_mass"]
SETS = [
    *("top_mass", "selected_divergence", "distance", "distance_per_token", "net_distance"),
    *("separability", "recall", "precision", "f_score", "separability_cosine", "precision_cosine"),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("measure", ROWS)
def test_measures_of_rows(compared: Any, measure: str) -> None:
    heads, plain = compared
    values = pick(heads, measure, 40).sort("layer", "head")["value"].to_list()
    want = torch.stack([one[measure] for one in plain]).double().mean(0).flatten()
    torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("measure", SETS)
def test_measures_of_sets(compared: Any, measure: str) -> None:
    heads, plain = compared
    values = pick(heads, measure, 40).sort("layer", "head", "n")["value"].to_list()
    want = torch.stack([one[measure] for one in plain]).double().mean(0).flatten()
    torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), want, rtol=2e-4, atol=1e-5)


def test_worst_sensitivity(compared: Any) -> None:
    """Thirty steps of power iteration come from below, and near."""
    heads, plain = compared
    values = torch.tensor(pick(heads, "sensitivity_worst_mean", 40).sort("layer", "head")["value"].to_list()).double()
    want = torch.stack([one["sensitivity_worst_mean"] for one in plain]).double().mean(0).flatten()
    assert bool((values > want - 1e-6).all())
    assert bool((values < 1.02 * want + 1e-6).all())


def test_random_control_has_the_mean_of_another_random_control(compared: Any) -> None:
    """Averaged over all heads, queries and windows: two draws of the same expectation."""
    heads, plain = compared
    for i, size in enumerate((1, 2, 5)):
        mean = pick(heads, "distance", 40).filter(pl.col("n") == size)["control"].mean()
        want = torch.stack([one["distance/control"] for one in plain])[..., i].mean()
        assert mean == pytest.approx(float(want), rel=0.15)


# The table


@pytest.mark.quick(4)
@pytest.mark.parametrize("family", BUILDERS)
def test_every_family_gives_a_whole_table(family: str) -> None:
    result = shared_run(family)
    heads = result.table
    assert dict(heads.schema) == SCHEMA
    assert heads["model"].unique().to_list() == [f"tiny {family}"]
    assert result.manifest["self_check"]["error"] < 1e-4
    layers = result.manifest["layers"]
    assert len(layers) == {"gemma2": 3, "t5": 6}.get(family, 2)
    per_head = heads.filter(pl.col("head").is_not_null())
    assert per_head.select("layer", "head").unique().height == 4 * len(layers)
    assert not heads["value"].is_nan().any()
    assert heads["value"].is_not_null().sum() > 0.95 * len(heads)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_no_value_is_above_its_limit(family: str) -> None:
    table = shared_run(family, temperatures=(1.0, 0.25)).table.filter(pl.col("limit").is_not_null())
    over = table.filter(
        (pl.col("value") > pl.col("limit") * (1 + 1e-5) + 1e-6) & (pl.col("measure") != "decay_exponent")
    )
    assert over.is_empty(), over
    limited = {"entropy", "effective_tokens", "max_weight", "logit_range", "top_mass", "distance", "net_distance"}
    assert limited | {"sensitivity_worst_max@T=0.25"} <= set(table["measure"])


def test_intervals_hold_the_value_and_one_window_has_none() -> None:
    several = shared_run().table.filter(pl.col("low").is_not_null() & pl.col("layer").is_not_null())
    mean = several.filter(~pl.col("measure").str.contains("_max"))
    assert mean.filter((pl.col("low") > pl.col("value") + 1e-9) | (pl.col("high") < pl.col("value") - 1e-9)).is_empty()
    entropy = pick(several, "entropy", 40)
    assert (entropy["high"] > entropy["low"]).all()
    one = shared_run(windows=1, lengths=[40]).table
    assert one["low"].is_null().all()
    assert one["high"].is_null().all()


def test_sinks_take_what_the_weights_leave() -> None:
    heads = shared_run("gpt-oss").table
    taken = pick(heads, "learned_sink_mass", 40)["value"]
    assert taken.min() > 0.01
    assert taken.max() < 1
    assert pick(heads, "entropy_floor", 40).is_empty()  # a bound for softmax without a sink


def test_another_normalizer() -> None:
    plain, sparse, same = (
        shared_run().table,
        shared_run(normalizer="sparsemax").table,
        shared_run(normalizer="softmax").table,
    )
    assert pick(sparse, "entropy", 40)["value"].mean() < 0.5 * pick(plain, "entropy", 40)["value"].mean()
    assert_frame_equal(plain, same)
    with_sinks = shared_run("gpt-oss", normalizer="entmax:alpha=1.5")
    assert "learned sinks: entmax:alpha=1.5 replaces softmax together with its sink" in with_sinks.manifest["skipped"]
    assert pick(with_sinks.table, "learned_sink_mass", 40).is_empty()


def test_encoder_rows_see_all_keys() -> None:
    heads = shared_run("bert").table
    assert pick(heads, "effective_tokens", 40)["limit"].unique().to_list() == [40.0]
    decoder = shared_run().table
    assert pick(decoder, "effective_tokens", 40)["limit"].max() < 40


def test_a_window_of_keys_bounds_the_effective_number() -> None:
    """Mistral's queries see 5 keys."""
    heads = shared_run("mistral").table
    assert pick(heads, "effective_tokens", 40)["limit"].max() <= 5
    assert pick(heads, "distance", 40).filter(pl.col("n") == 5).is_empty()


def test_sizes_that_no_query_has_are_listed() -> None:
    result = shared_run(lengths=[4], sizes=(1, 2, 8, 16))
    assert sorted(pick(result.table, "distance", 4)["n"].unique()) == [1, 2]
    assert any("length 4: sets of 8, 16" in why for why in result.manifest["skipped"])


@pytest.mark.slow
def test_windows_without_long_rows_do_not_stop_the_table() -> None:
    """With few queries, some windows (and resamples of them) have no query that sees more than N keys."""
    for seed in range(12):
        table = run(lengths=[40], windows=2, queries=4, sizes=(1, 35), seed=seed).table
        assert not pick(table, "ks_statistic", 40, of_heads=False).filter(pl.col("n") == 1).is_empty()


def test_test_of_small_sets_does_not_depend_on_the_other_sizes() -> None:
    """Half of Gemma-2's layers see 5 keys only."""
    some, more = (
        pick(shared_run("gemma2", sizes=grid).table, "ks_statistic", 40, of_heads=False)
        for grid in ((1, 2), (1, 2, 20))
    )
    assert some["value"].to_list() == more.filter(pl.col("n") <= 2)["value"].to_list()


def test_sizes_far_beyond_the_window_cost_nothing() -> None:
    table = shared_run(lengths=[16], sizes=(1, 2, 10**9)).table
    assert table["n"].max() == 2


def test_decay_exponent_of_uniform_attention_is_one() -> None:
    tiny = model()
    for block in tiny.network.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn.weight.data[:, :32] = 0
        block.attn.c_attn.bias.data[:32] = 0
    heads = abbe.diagnose(tiny, TEXT, lengths=[16, 40], **QUICK).table
    rows = pick(heads, "decay_exponent", None)
    assert rows["value"].to_list() == pytest.approx([1.0] * 8, abs=1e-5)
    assert pick(heads, "entropy", 40)["value"].to_list() == pytest.approx(pick(heads, "entropy", 40)["limit"].to_list())


# Vectors


def test_output_vectors_have_the_distances_of_projected_values() -> None:
    from abbe.models import tap
    from abbe.runs.window import token_vectors

    for family in ("gpt2", "llama", "bert"):
        tiny = model(family)
        ids = torch.randint(2, 256, (1, 12), generator=torch.Generator().manual_seed(0))
        calls: list[Any] = []
        with torch.no_grad(), tap(tiny.network) as t:
            t.check(input_ids=ids)
            t.listen(calls.append)
            tiny.network(input_ids=ids)
        small = token_vectors("output", calls[0], tiny.network, ids)
        shared = calls[0].value[0].repeat_interleave(4 // calls[0].value.shape[1], 0)
        full = torch.einsum("hkd,hdo->hko", shared, calls[0].value_to_output())
        assert small.shape == (4, 12, 8)
        torch.testing.assert_close(torch.cdist(small, small), torch.cdist(full, full), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(small.norm(dim=-1), full.norm(dim=-1), rtol=1e-4, atol=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("vectors", ["embedding", "hidden", "output"])
def test_vectors_change_the_geometry_only(vectors: str) -> None:
    plain, other = shared_run().table, shared_run(vectors=vectors).table
    same = pl.col("measure").is_in(["entropy", "top_mass", "sensitivity_worst_mean", "selected_divergence"])
    assert_frame_equal(plain.filter(same), other.filter(same))
    assert pick(plain, "distance", 40)["value"].to_list() != pick(other, "distance", 40)["value"].to_list()


def test_embeddings_have_length_one() -> None:
    """N = 1: the sum is a token of that length, times its weight."""
    heads = shared_run(vectors="embedding", sizes=(1,), lengths=[16]).table
    assert pick(heads, "net_distance", 16)["value"].max() <= 2


def test_cross_attention_has_no_patterns() -> None:
    """Its keys are the tokens of another stack: there is no token before."""
    diagnosed = shared_run("t5", lengths=[16])
    crossing = {number for number, name in enumerate(diagnosed.manifest["layers"]) if "EncDec" in name}
    assert len(crossing) == 2
    for measure in ("previous_token", "induction"):
        layers = set(pick(diagnosed.table, measure, 16)["layer"])
        assert layers == set(range(len(diagnosed.manifest["layers"]))) - crossing


def test_a_text_without_repeated_tokens_has_no_induction() -> None:
    different = abbe.Text("alphabet", "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    table = abbe.diagnose(model(), different, lengths=[16], **QUICK).table
    assert pick(table, "previous_token", 16).height == 8
    assert pick(table, "previous_token", 16)["control"].is_not_null().all()
    assert "induction" not in set(table["measure"])


def test_cross_attention_has_no_embeddings_and_says_so() -> None:
    result = shared_run("t5", vectors="embedding")
    crossing = [why for why in result.manifest["skipped"] if "cross attention" in why]
    assert len(crossing) == 2
    assert result.table["layer"].drop_nulls().n_unique() == 4


# Queries and blocks


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [1, 700])
def test_blocks_of_queries_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(queries=13).table
    monkeypatch.setattr(_window, "BLOCK", block)
    assert_frame_equal(run(queries=13).table, whole, rel_tol=1e-5, abs_tol=1e-6)


def test_one_query_from_each_stretch() -> None:
    asked, seen = settings(lengths=[100]), set()
    for index in range(40):
        window = abbe.Window(100, index, torch.zeros(100, dtype=torch.int64), 0, 1)
        positions = _window.query_positions(100, asked, window)
        assert all(100 * i // 8 <= place < 100 * (i + 1) // 8 for i, place in enumerate(positions.tolist()))
        assert positions.tolist() == _window.query_positions(100, asked, window).tolist()
        seen |= set(positions.tolist())
    assert len(seen) > 90
    assert _window.query_positions(5, asked, window).tolist() == [0, 1, 2, 3, 4]


def test_seed_decides_and_lengths_do_not_disturb_each_other() -> None:
    together, alone = shared_run().table, shared_run(lengths=[40]).table
    assert_frame_equal(run().table, together)
    assert not run(seed=1).table.equals(together)
    of_length = pl.col("length") == 40
    assert_frame_equal(together.filter(of_length), alone.filter(of_length))
