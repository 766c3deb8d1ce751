"""A window to look at: which queries, which keys, and balls that agree with the measures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import tiny_models
import torch
from inside import sample_positions, sample_rows, sample_window
from read_alone import take_sample
from row_cases import random_rows
from tiny_runs import BUILDERS, TEXT, model

import abbe
from abbe.measures import Rows, choose_sets, geometry
from abbe.models import AttentionCall, LoadedModel, Window, tap, windows, wrap
from abbe.runs.inputs import Settings, settings_for
from abbe.runs.window import check_model, rows_of_call, run_model, token_vectors
from abbe.studies import Ball, Sample

SIZES = (2, 5)


def settings(**options: Any) -> Settings:
    given: dict[str, Any] = {"lengths": [16, 40], "windows": 2, "queries": 8, "sizes": None, "vectors": "value"}
    given |= {"normalizer": None, "temperatures": (1.0,), "seed": 0, "level": 0.95, "resamples": 50}
    return settings_for(None, **(given | options))


def cut(tiny: LoadedModel, chosen: Settings) -> list[Window]:
    return windows(TEXT, chosen.lengths, chosen.windows, chosen.seed, tokenizer=tiny.tokenizer)


def sampled(tiny: LoadedModel, chosen: Settings, **options: Any) -> Sample:
    with tap(tiny) as open_tap:
        return take_sample(tiny, TEXT, open_tap, cut(tiny, chosen), chosen, **({"sizes": SIZES} | options))


def all_rows(tiny: LoadedModel, chosen: Settings, sample: Sample) -> dict[int, Rows]:
    """The rows of every layer at the queries of the sample, float64."""
    window = next(one for one in cut(tiny, chosen) if (one.length, one.index) == (sample.length, sample.index))
    by_layer: dict[int, Rows] = {}

    def read(call: AttentionCall) -> None:
        vectors = token_vectors(chosen.vectors, call, tiny.network, window.tokens[None])
        made = None if chosen.normalizer is None else abbe.normalizer(chosen.normalizer)
        rows = rows_of_call(call, torch.tensor(sample.queries), vectors, made)
        by_layer[open_tap.layers.index(call.name)] = Rows(
            rows.logits.double(), rows.weights.double(), rows.vectors.double()
        )

    with tap(tiny) as open_tap, torch.no_grad():
        check_model(tiny, open_tap, window.tokens)  # finds the output projections
        open_tap.listen(read)
        run_model(tiny, window.tokens)
    return by_layer


# Balls agree with the measures


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        *((family, {}) for family in BUILDERS),
        ("gpt2", {"vectors": "embedding"}),
        ("llama", {"vectors": "output"}),
        ("bert", {"vectors": "hidden"}),
        ("gpt2", {"normalizer": "sparsemax"}),
        ("gpt-oss", {"normalizer": "softmax"}),
    ],
)
def test_shares_inside_and_intruders_are_separability_and_precision(family: str, options: dict[str, Any]) -> None:
    tiny, chosen = model(family), settings(**options)
    sample = sampled(tiny, chosen)
    layers = all_rows(tiny, chosen, sample)
    assert len(sample.rows) == len(layers) * 4 * 8
    balls = 0
    for row in sample.rows:
        rows, place = layers[row.layer], sample.queries.index(row.query)
        sets = choose_sets(rows, SIZES, torch.Generator().manual_seed(0))
        readings = geometry(rows, sets)
        seen = int(rows.count[row.head, place])
        assert [ball.size for ball in row.balls] == [size for size in SIZES if size < seen]
        assert row.keys == tuple(sets.selected[row.head, place, : min(5, seen)].tolist())
        assert row.weights == pytest.approx(rows.weights[row.head, place, list(row.keys)].tolist(), rel=1e-12)
        for ball in row.balls:
            at = row.head, place, SIZES.index(ball.size)
            assert sum(ball.inside) / ball.size == readings["separability"].value[at]
            assert ball.size / (ball.size + ball.intruders) == readings["precision"].value[at]
            balls += 1
    assert balls > len(sample.rows) / 2


def test_weights_are_those_of_the_eager_model() -> None:
    tiny, chosen = model(), settings()
    sample = sampled(tiny, chosen)
    tokens = next(one for one in cut(tiny, chosen) if one.length == 40).tokens
    with torch.no_grad():
        attentions = tiny_models.eager_twin(tiny.network)(input_ids=tokens[None], output_attentions=True).attentions
    for row in sample.rows:
        want = attentions[row.layer][0, row.head, row.query]
        assert row.weights == pytest.approx(want.sort(descending=True).values[: len(row.keys)].tolist(), abs=1e-6)
        assert row.weights == pytest.approx(want[list(row.keys)].tolist(), abs=1e-6)


def test_sinks_take_their_part_of_the_weights() -> None:
    sample = sampled(model("gpt-oss"), settings(), sizes=(40,))
    whole = sampled(model("gpt-oss"), settings(normalizer="softmax"), sizes=(40,))
    taken = [1 - sum(row.weights) for row in sample.rows]
    assert min(taken) > 0
    assert max(taken) > 0.1
    assert all(sum(row.weights) == pytest.approx(1, abs=1e-5) for row in whole.rows)


@pytest.mark.parametrize("vectors", ["embedding", "hidden"])
def test_cross_attention_without_vectors_has_no_rows(vectors: str) -> None:
    tiny = model("t5")
    with_cross, without = (sampled(tiny, settings(vectors=kind)) for kind in ("value", vectors))
    layers = {row.layer for row in with_cross.rows}
    assert len(layers) == 6
    assert len({row.layer for row in without.rows}) == 4
    assert without.queries == with_cross.queries


# One ball, by definition


def plain_ball(rows: Rows, head: int, query: int, size: int) -> tuple[list[float], float, dict[int, float]]:
    """Distances of the selected from their sum, the radius, and the distances of the others; with loops."""
    weights, vectors = rows.weights[head, query].tolist(), rows.group(head).tolist()
    seen = [key for key in range(rows.keys) if rows.logits[head, query, key] > -math.inf]
    order = sorted(seen, key=lambda key: -weights[key])
    points = {key: [weights[key] * part for part in vectors[key]] for key in seen}
    centre = [sum(points[key][f] for key in order[:size]) for f in range(len(vectors[0]))]
    far = {key: math.dist(points[key], centre) for key in seen}
    others = {key: far[key] for key in order[size:]}
    return [far[key] for key in order[:size]], min(others.values()), others


@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
def test_distances_by_loops(mask: str) -> None:
    rows = random_rows(3, keys=60, mask=mask, groups=2)
    listed = sample_rows(rows, 7, [10, 11, 12, 13, 14, 15], (1, 5, 20), torch.Generator().manual_seed(0))
    assert [(row.layer, row.head, row.query) for row in listed] == [(7, h, 10 + q) for h in range(4) for q in range(6)]
    some = 0
    for row in listed:
        for ball in row.balls:
            distances, radius, others = plain_ball(rows, row.head, row.query - 10, ball.size)
            assert ball.distances == pytest.approx(distances, abs=1e-12)
            assert ball.radius == pytest.approx(radius)
            assert ball.inside == tuple(distance <= ball.radius for distance in ball.distances)
            check_others(ball, others)
            some += len(others) > 22
    assert some > 5 or mask == "window"  # which holds 20 keys


def check_others(ball: Ball, others: dict[int, float]) -> None:
    """The twelve nearest, then up to ten of the rest, at their own distances."""
    assert len(set(ball.other_keys)) == len(ball.other_keys) == min(22, len(others))
    assert ball.other_distances == pytest.approx([others[key] for key in ball.other_keys])
    assert list(ball.other_distances[:12]) == pytest.approx(sorted(others.values())[:12])
    assert list(ball.other_distances) == sorted(ball.other_distances)
    assert ball.intruders == sum(distance <= max(ball.distances) for distance in others.values())


def test_rows_without_weight_or_key_have_no_ball() -> None:
    logits = torch.zeros(1, 3, 8, dtype=torch.float64)
    logits[0, 0] = -math.inf
    weights = torch.softmax(logits, -1)
    weights[0, :2] = 0
    rows = Rows(logits, weights, torch.ones(1, 8, 2, dtype=torch.float64))
    listed = sample_rows(rows, 0, [0, 1, 2], (2,), torch.Generator().manual_seed(0))
    assert [len(row.keys) for row in listed] == [0, 2, 2]
    assert [len(row.balls) for row in listed] == [0, 0, 1]


def test_keys_of_weight_zero_tie_as_separability_says() -> None:
    """Three keys with weight in a set of five: the two zeros lie as far from s as all zeros outside, on the ball."""
    weights = torch.tensor([[[0.5, 0.3, 0.2, 0, 0, 0, 0, 0]]], dtype=torch.float64)
    vectors = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = Rows(torch.zeros(1, 1, 8, dtype=torch.float64), weights, vectors)
    (ball,) = sample_rows(rows, 0, [7], (5,), torch.Generator().manual_seed(0))[0].balls
    assert ball.inside[3:] == (True, True)
    assert ball.intruders == 3


# Window and queries


def made_up(length: int, index: int = 0) -> Window:
    return Window(length, index, torch.arange(length), 0, length)


@pytest.mark.parametrize(
    ("lengths", "want"), [([64, 256, 1024], 256), ([64, 128, 512], 128), ([512, 1024], 512), ([1024, 300], 300)]
)
def test_the_first_window_of_the_longest_length_that_fits(lengths: list[int], want: int) -> None:
    window = sample_window([made_up(length, index) for length in lengths for index in (0, 1)])
    assert (window.length, window.index) == (want, 0)


@pytest.mark.parametrize("length", [2, 3, 9, 40, 256])
@pytest.mark.parametrize("queries", [1, 2, 8, 300])
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_positions_are_spread_and_hold_the_last(family: str, queries: int, length: int) -> None:
    tiny, first = model(family), 0 if family == "bert" else length // 8
    positions = sample_positions(tiny, made_up(length), settings(), 8, queries).tolist()
    assert positions[-1] == length - 1
    assert len(positions) == min(queries, length - first)
    assert positions[0] >= first
    assert all(a < b for a, b in pairwise(positions))
    assert all(b - a <= 2 * -(-length // max(1, len(positions) - 1)) for a, b in pairwise(positions))
    assert positions == sample_positions(tiny, made_up(length), settings(), 8, queries).tolist()


def test_the_seed_moves_the_positions() -> None:
    places = {tuple(sample_positions(model(), made_up(256), settings(seed=seed), 8, 8).tolist()) for seed in range(5)}
    assert len(places) == 5


@pytest.mark.parametrize(("heads", "want"), [(8, 8), (144, 8), (300, 8), (480, 5), (1200, 2), (9999, 2)])
def test_many_heads_get_fewer_queries(heads: int, want: int) -> None:
    positions = sample_positions(model(), made_up(256), settings(), heads, 8)
    assert len(positions) == want
    assert len(positions) * heads <= 2400 or want == 2


def test_same_sample_every_time_and_deaf_to_later_passes() -> None:
    tiny, chosen = model(), settings()
    with tap(tiny) as open_tap:
        once = take_sample(tiny, TEXT, open_tap, cut(tiny, chosen), chosen, sizes=SIZES)
        again = take_sample(tiny, TEXT, open_tap, cut(tiny, chosen), chosen, sizes=SIZES)
        run_model(tiny, cut(tiny, chosen)[0].tokens)  # too short for the queries of the sample
    assert once == again
    assert "".join(once.tokens) in TEXT.content
    assert len(once.tokens) == once.length == 40


# The compact form


@pytest.fixture(scope="module")
def sample() -> Sample:
    return sampled(model("mistral"), settings(), sizes=(2, 4, 20))


def test_json_keeps_four_digits(sample: Sample) -> None:
    again = Sample.from_json(json.loads(json.dumps(sample.as_json())))
    assert replace(again, rows=()) == replace(sample, rows=())
    assert len(again.rows) == len(sample.rows) == 64
    for old, new in zip(sample.rows, again.rows, strict=True):
        assert (old.layer, old.head, old.query, old.keys) == (new.layer, new.head, new.query, new.keys)
        assert new.weights == pytest.approx(old.weights, rel=5e-4)
        assert len(old.balls) == 2
        for ball, kept in zip(old.balls, new.balls, strict=True):
            for name, value in vars(ball).items():
                exact = name in ("size", "inside", "other_keys", "intruders")
                assert getattr(kept, name) == (value if exact else pytest.approx(value, rel=5.001e-4, abs=0))
    assert Sample.from_json(again.as_json()) == again


@pytest.mark.slow
def test_size_of_144_heads() -> None:
    network = tiny_models.gpt2(n_layer=12, n_head=12, n_embd=96, n_positions=256, vocab_size=256)
    tiny = wrap(network, tiny_models.byte_tokenizer(), "wide")
    large = sampled(tiny, settings(lengths=[256]), sizes=(5, 20))
    assert len(large.rows) == 144 * 8
    assert sum(len(row.balls) for row in large.rows) == 2 * 144 * 8
    content = large.as_json()
    heat = len(json.dumps(content.pop("heat"), separators=(",", ":")))
    assert heat < 144 * 64 * 64 * 1.4  # a byte per cell, in base 64
    assert len(json.dumps(content, separators=(",", ":"))) < 1_800_000
