"""The heat map of a head: what a cell holds, how small it is kept, and that it is the model's own attention."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import tiny_models
import torch
from inside import heat_codes, heat_grid, weight_of
from test_sample import cut, sampled, settings
from tiny_runs import model

from abbe.studies import Sample

LEAST = 1e-4  # below, a cell is white


@pytest.mark.parametrize(("length", "heads", "side"), [(40, 4, 40), (256, 48, 64), (256, 1200, 31), (256, 10**9, 8)])
def test_the_grid_covers_the_window_and_stays_small(length: int, heads: int, side: int) -> None:
    queries, edges = heat_grid(length, heads)
    assert len(queries) == len(edges) - 1 == side
    assert (edges[0], edges[-1], queries[-1]) == (0, length, length - 1)
    assert list(edges) == sorted(set(edges))
    assert side == 8 or heads * side**2 <= 1_200_000


def test_a_cell_is_the_sum_of_its_stretch_within_two_percent() -> None:
    torch.manual_seed(0)
    weights = torch.softmax(4 * torch.randn(3, 5, 37), -1)
    _, edges = heat_grid(37, 10**5)
    assert len(edges) < 37
    codes = heat_codes(weights, edges)
    for head in range(3):
        cells = torch.tensor([weight_of(code) for code in codes[head]]).reshape(5, -1)
        for column, (first, last) in enumerate(pairwise(edges)):
            want = weights[head, :, first:last].sum(-1)
            assert cells[:, column].tolist() == pytest.approx(want.tolist(), rel=0.02, abs=LEAST)


def test_the_ends_of_the_scale() -> None:
    (codes,) = heat_codes(torch.tensor([[[1.0, 0.0, 1.001 * LEAST, LEAST / 3, float("nan")]]]), (0, 1, 2, 3, 4, 5))
    assert list(codes) == [255, 0, 1, 0, 0]
    assert [weight_of(code) for code in codes[:3]] == pytest.approx([1, 0, LEAST])


def test_the_cells_of_a_sample_are_the_attention_of_the_eager_model() -> None:
    tiny, chosen = model(), settings()
    sample = sampled(tiny, chosen)
    assert sample.heat is not None
    assert sample.heat.queries == tuple(range(40))  # a short window has a cell for every token
    tokens = next(one for one in cut(tiny, chosen) if one.length == 40).tokens
    with torch.no_grad():
        layers = tiny_models.eager_twin(tiny.network)(input_ids=tokens[None], output_attentions=True).attentions
    assert set(sample.heat.heads) == {(layer, head) for layer in range(len(layers)) for head in range(4)}
    for (layer, head), codes in sample.heat.heads.items():
        cells = [weight_of(code) for code in codes]
        assert cells == pytest.approx(layers[layer][0, head].flatten().tolist(), rel=0.02, abs=LEAST)


def test_a_sample_keeps_its_map() -> None:
    sample = sampled(model(), settings())
    assert Sample.from_json(json.loads(json.dumps(sample.as_json()))).heat == sample.heat
    without = replace(sample, heat=None)
    assert Sample.from_json(without.as_json()) == replace(Sample.from_json(sample.as_json()), heat=None)
