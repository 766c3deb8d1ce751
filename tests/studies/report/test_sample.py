"""The window to look at in a report: its queries, keys, balls and heat map, against loops over the model's own rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from tiny_runs import BUILDERS, TEXT, model

import abbe
from abbe.measures import Rows, choose_sets, geometry
from abbe.models import AttentionCall, LoadedModel, tap, windows, wrap
from abbe.runs.window import check_model, rows_of_call, run_model, token_vectors
from abbe.studies import Ball, Sample

SIZES = (5, 20)
LEAST = 1e-4  # below, a cell of the heat map is white
QUICK: dict[str, Any] = {
    "lengths": [16, 40],
    "windows": 2,
    "queries": 2,
    "sizes": 1,
    "temperatures": (),
    "resamples": 5,
}


def sharp() -> LoadedModel:
    """Logits so far apart that most weights are exactly 0: many keys lie as far away as others."""
    made = model()
    for block in made.network.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn.weight.data[:, :32] *= 300
    return made


@cache
def tiny(family: str) -> LoadedModel:
    return sharp() if family == "sharp" else model(family)


@cache
def sampled(family: str = "gpt2", **options: Any) -> Sample:
    made = abbe.report(tiny(family), TEXT, progress=False, **(QUICK | options)).sample
    assert made is not None
    return made


def all_rows(family: str, sample: Sample, kind: str = "value") -> dict[int, Rows]:
    """The rows of every layer at the queries of the sample, float64."""
    made = tiny(family)
    cut = windows(TEXT, [16, 40], 2, 0, tokenizer=made.tokenizer)
    window = next(one for one in cut if (one.length, one.index) == (sample.length, sample.index))
    by_layer: dict[int, Rows] = {}

    def read(call: AttentionCall) -> None:
        vectors = token_vectors(kind, call, made.network, window.tokens[None])
        rows = rows_of_call(call, torch.tensor(sample.queries), vectors)
        by_layer[call.place] = Rows(rows.logits.double(), rows.weights.double(), rows.vectors.double())

    with tap(made) as open_tap, torch.no_grad():
        check_model(made, open_tap, window.tokens)  # finds the output projections
        open_tap.listen(read)
        run_model(made, window.tokens)
    return by_layer


# -- Balls agree with the measures and with loops ---------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("family", "vectors"),
    [
        *((family, "value") for family in ("sharp", *BUILDERS)),
        *(("gpt2", "embedding"), ("llama", "output"), ("bert", "hidden")),
    ],
)
def test_balls_are_those_of_the_measures_and_of_loops(family: str, vectors: str) -> None:
    sample = sampled(family, vectors=vectors)
    layers, balls, angles = all_rows(family, sample, vectors), 0, set()
    assert len(sample.rows) == len(layers) * 4 * 8
    for row in sample.rows:
        rows, place = layers[row.layer], sample.queries.index(row.query)
        sets = choose_sets(rows, SIZES, torch.Generator().manual_seed(0))
        readings = geometry(rows, sets)
        seen = int(rows.count[row.head, place])
        assert [ball.size for ball in row.balls] == [size for size in SIZES if size < seen]
        assert row.keys == tuple(sets.selected[row.head, place, : min(20, seen)].tolist())
        assert row.weights == pytest.approx(rows.weights[row.head, place, list(row.keys)].tolist(), rel=1e-12)
        for ball in row.balls:
            at = row.head, place, SIZES.index(ball.size)
            assert sum(ball.inside) / ball.size == readings["separability"].value[at]
            assert ball.size / (ball.size + ball.intruders) == readings["precision"].value[at]
            check_ball(ball, row.keys, rows, row.head, place)
            balls += 1
            angles |= {*ball.angles, *ball.other_angles}
    assert balls > len(sample.rows) / 3 or family == "mistral"  # whose queries see five keys
    assert len(angles) > 4 * balls or family in ("mistral", "sharp")


def check_ball(ball: Ball, keys: tuple[int, ...], rows: Rows, head: int, place: int) -> None:
    """Distances from the sum of the selected: the twelve nearest of the others, then up to ten of the rest."""
    weights, vectors = rows.weights[head, place], rows.group(head)
    points = (weights[:, None] * vectors).numpy()
    centre = points[list(keys[: ball.size])].sum(0)
    seen = [key for key in range(rows.keys) if rows.logits[head, place, key] > -math.inf]
    far = {key: math.dist(points[key], centre) for key in seen}
    others = {key: far[key] for key in seen if key not in keys[: ball.size]}
    assert ball.distances == pytest.approx([far[key] for key in keys[: ball.size]], abs=1e-12)
    assert ball.radius == pytest.approx(min(others.values()))
    assert ball.inside == tuple(distance <= ball.radius for distance in ball.distances)
    assert len(set(ball.other_keys)) == len(ball.other_keys) == min(22, len(others))
    assert ball.other_distances == pytest.approx([others[key] for key in ball.other_keys])
    assert list(ball.other_distances[:12]) == pytest.approx(sorted(others.values())[:12])
    assert list(ball.other_distances) == sorted(ball.other_distances)
    assert ball.intruders == sum(distance <= max(ball.distances) for distance in ball.other_distances) or (
        ball.intruders > 12
    )
    shown = np.array([*ball.angles, *ball.other_angles])
    assert ((shown >= 0) & (shown < 360)).all()
    check_angles(shown, points[[*keys[: ball.size], *ball.other_keys]], centre)


def check_angles(shown: np.ndarray, points: np.ndarray, centre: np.ndarray) -> None:
    """In the plane of the two largest principal components of the directions across the line to the origin."""
    line = centre / np.linalg.norm(centre)
    across = points - np.outer(points @ line, line)
    lengths = np.linalg.norm(across, axis=1)
    directed = lengths > 1e-9 * np.linalg.norm(points, axis=1)
    assert (shown[~directed] == 0).all()
    units = across[directed] / lengths[directed, None]
    along, sizes, _ = np.linalg.svd(units, full_matrices=False)
    if min(len(sizes), 3) < 3 or sizes[0] < 1.02 * sizes[1] or sizes[1] < 1.02 * sizes[2]:
        return  # the plane, or the order of its axes, is not determined
    along = (along * sizes)[:, :2]
    apart = []
    for signs in product((1, -1), repeat=2):
        first, second = (along * signs).T
        # Each axis points to the side of its farthest point; two may lie equally far on both sides.
        if all(axis.max() >= -axis.min() - 1e-6 for axis in (first, second)):
            off = shown[directed] - np.degrees(np.arctan2(second, first))
            apart.append(np.abs((off + 180) % 360 - 180).max())
    assert min(apart) < 1e-4


@pytest.mark.parametrize("family", ["gpt2", "gpt-oss"])
def test_weights_and_cells_are_those_of_the_eager_model(family: str) -> None:
    """Sinks take their part of them."""
    sample, made = sampled(family), tiny(family)
    assert sample.heat is not None
    assert sample.heat.queries == tuple(range(40))  # a short window has a cell for every token
    assert sample.heat.edges == tuple(range(41))
    tokens = windows(TEXT, [16, 40], 2, 0, tokenizer=made.tokenizer)[2].tokens
    with torch.no_grad():
        layers = tiny_models.eager_twin(made.network)(input_ids=tokens[None], output_attentions=True).attentions
    for row in sample.rows:
        want = layers[row.layer][0, row.head, row.query]
        assert row.weights == pytest.approx(want.sort(descending=True).values[: len(row.keys)].tolist(), abs=1e-6)
        assert row.weights == pytest.approx(want[list(row.keys)].tolist(), abs=1e-6)
    assert set(sample.heat.heads) == {(layer, head) for layer in range(len(layers)) for head in range(4)}
    for (layer, head), codes in sample.heat.heads.items():
        assert weights_of(codes) == pytest.approx(layers[layer][0, head].flatten().tolist(), rel=0.02, abs=LEAST)
    codes = b"".join(sample.heat.heads.values())
    assert 0 in codes
    assert max(codes) == 255 or family == "gpt-oss"


def weights_of(codes: bytes) -> list[float]:
    """0 for less than 1e-4, then equal factors up to 255 for 1."""
    return [0.0 if code == 0 else 1e-4 ** ((255 - code) / 254) for code in codes]


@pytest.mark.parametrize("vectors", ["embedding", "hidden"])
def test_cross_attention_without_vectors_has_no_rows(vectors: str) -> None:
    with_cross, without = (sampled("t5", vectors=kind) for kind in ("value", vectors))
    assert len({row.layer for row in with_cross.rows}) == 6
    assert len({row.layer for row in without.rows}) == 4
    assert without.queries == with_cross.queries


# -- Window and queries -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "want"), [((16, 300), 16), ((300, 280), 280), ((64, 256), 256)])
def test_the_first_window_of_the_longest_length_that_fits(lengths: tuple[int, ...], want: int) -> None:
    """On a screen, which is 256 tokens; its map has 64 stretches at most."""
    made = wrap(tiny_models.gpt2(vocab_size=256, n_positions=512), tiny_models.byte_tokenizer(512), "long")
    sample = abbe.report(made, TEXT, progress=False, **(QUICK | {"lengths": lengths})).sample
    assert sample is not None
    assert sample.heat is not None
    assert (sample.length, sample.index) == (want, 0)
    side = min(want, 64)
    assert len(sample.heat.queries) == len(sample.heat.edges) - 1 == side
    assert (sample.heat.edges[0], sample.heat.edges[-1], sample.heat.queries[-1]) == (0, want, want - 1)
    assert {b - a for a, b in pairwise(sample.heat.edges)} <= {want // side, -(-want // side)}


@pytest.mark.parametrize(("family", "length"), [("gpt2", 2), ("gpt2", 9), ("gpt2", 40), ("gpt2", 64), ("bert", 40)])
def test_positions_are_spread_and_hold_the_last(family: str, length: int) -> None:
    first = 0 if family == "bert" else length // 8
    positions = sampled(family, lengths=length).queries
    assert positions[-1] == length - 1
    assert len(positions) == min(8, length - first)
    assert positions[0] >= first
    assert all(a < b for a, b in pairwise(positions))
    assert all(b - a <= 2 * -(-length // max(1, len(positions) - 1)) for a, b in pairwise(positions))


def test_the_same_seed_gives_the_same_sample_and_others_move_the_positions() -> None:
    once = sampled()
    assert once == abbe.report(tiny("gpt2"), TEXT, progress=False, **QUICK).sample
    assert "".join(once.tokens) in TEXT.content
    assert len(once.tokens) == once.length == 40
    assert len({sampled(seed=seed).queries for seed in range(3)}) == 3


@pytest.mark.slow
def test_many_heads_get_fewer_queries_coarser_maps_and_blocks_that_add_up() -> None:
    """480 heads of one feature, which leaves no direction across the line to the origin."""
    network = tiny_models.gpt2(n_layer=1, n_head=480, n_embd=480, n_positions=80, vocab_size=256)
    wide = wrap(network, tiny_models.byte_tokenizer(80), "wide")
    made = abbe.report(wide, TEXT, progress=False, **(QUICK | {"lengths": 80, "windows": 1}))
    sample = made.sample
    assert sample is not None
    assert sample.heat is not None
    assert len(sample.queries) == 2400 // 480
    assert len(sample.heat.queries) == math.isqrt(1_200_000 // 480) == 50
    assert {angle for row in sample.rows for ball in row.balls for angle in (*ball.angles, *ball.other_angles)} == {0}
    content = sample.as_json()
    assert (
        len(json.dumps(content.pop("heat"), separators=(",", ":"))) < 480 * 50 * 50 * 1.4
    )  # a byte a cell, in base 64
    assert len(json.dumps(content, separators=(",", ":"))) < 1600 * 480 * 5
    # 32 queries of so many logits are read in two blocks.
    active = made.alternatives.filter(normalizer="baseline")["active"]
    seen = np.mean([position + 1 for position in [2.5 * i + 0.75 for i in range(32)]])
    assert active.to_list() == pytest.approx([active[0]] * 480)
    assert active[0] == pytest.approx(seen, abs=1.5)


# -- The compact form -------------------------------------------------------------------------------------------------


def test_json_keeps_four_digits() -> None:
    sample = sampled("llama")
    again = Sample.from_json(json.loads(json.dumps(sample.as_json())))
    assert replace(again, rows=()) == replace(sample, rows=())  # the map with them
    assert len(again.rows) == len(sample.rows) == 64
    for old, new in zip(sample.rows, again.rows, strict=True):
        assert (old.layer, old.head, old.query, old.keys) == (new.layer, new.head, new.query, new.keys)
        assert new.weights == pytest.approx(old.weights, rel=5e-4)
        for ball, kept in zip(old.balls, new.balls, strict=True):
            for name, value in vars(ball).items():
                exact = name in ("size", "inside", "other_keys", "intruders")
                assert getattr(kept, name) == (value if exact else pytest.approx(value, rel=5.001e-4, abs=0))
    assert Sample.from_json(again.as_json()) == again
    assert Sample.from_json(replace(sample, heat=None).as_json()) == replace(again, heat=None)
