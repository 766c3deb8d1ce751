"""Selectivity of swapped models by brute force, and sensitivity at equal selectivity."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_runs
import torch
from compare_runs import SETTINGS, made, row, word_model
from inside import (
    CompareSettings,
    SwapReader,
    _weights,
    as_alternatives,
    at_equal_selectivity,
    baseline_logits,
    effective_tokens,
    matched_temperatures,
    spread,
    theory,
    window_losses,
)
from needle_models import TEXT

import abbe
from abbe.models import swap
from abbe.models import windows as cut_windows
from abbe.normalizers import normalizer

# -- Selectivity ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
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

    settings = CompareSettings(as_alternatives("sparsemax"), 40, 1, 40, 0.05, (31,), 1, False, 0, 0.95, 50)
    with swap(model, "sparsemax") as swapped:
        swapped.listen(hear)
        reading = SwapReader(model, swapped, settings.reading()).read(window)
        loss = float(window_losses(model, [window])[0])
    assert len(heads) >= 8
    for name in ("active", "zeros", "effective_tokens"):
        expected = sum(head[name] for head in heads[:8]) / 8  # two layers of four heads, in the first pass
        assert reading[name] == pytest.approx(expected, rel=1e-5)
    assert reading["loss"] == pytest.approx(loss, rel=1e-9)


# -- Sensitivity at equal selectivity ---------------------------------------------------------------------------------


def random_logits(heads: int = 3, least: float = 0.3) -> torch.Tensor:
    spread = torch.linspace(least, 3, heads)[:, None, None, None]
    return spread * torch.randn(heads, 2, 6, 30, generator=torch.Generator().manual_seed(4))


def test_temperature_of_a_softmax_that_is_already_scaled() -> None:
    logits = random_logits()
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer("softmax:temperature=2"), logits, target)
    assert matched.all()
    torch.testing.assert_close(temperature, torch.full_like(temperature, 0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "sparsemax", "topp:p=0.9"])
def test_matched_heads_are_as_selective_as_softmax(spec: str) -> None:
    logits = random_logits(least=1.0)
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer(spec), logits, target)
    assert matched.all()
    for head in range(3):  # by brute force
        rows = normalizer(spec)(logits[head].reshape(-1, 30) / temperature[head].float()).double()
        mean = sum(float(row.sum() ** 2 / (row**2).sum()) for row in rows) / len(rows)
        assert mean == pytest.approx(float(target[head]), rel=0.02)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("spec", "count"),
    [("sigmoid", 2), ("softpick", 2), ("relu", 0), ("topk:k=8", 2), ("topp:p=0.9", 3), ("sparsemax", 4)],
)
def test_the_root_nearest_one_by_brute_force(spec: str, count: int) -> None:
    """All crossings of a fine grid of ln T. The effective number of relu does not depend on T: it has none."""
    logits, made = random_logits(4), normalizer(spec)
    target = effective_tokens(normalizer("softmax"), logits)
    fine = torch.linspace(-6.9, 6.9, 1381, dtype=torch.float64)
    above = torch.stack([effective_tokens(made, logits, at.exp().expand(4)) - target for at in fine])
    temperature, matched = matched_temperatures(made, logits, target)
    assert matched.sum() == count
    for head in range(4):
        crossed = above[:-1, head] * above[1:, head] <= 0
        assert bool(matched[head]) == bool(crossed.any())
        if matched[head]:
            root = min(fine[:-1][crossed].tolist(), key=abs)
            assert float(temperature[head].log()) == pytest.approx(root, abs=0.011)


class Wavy:
    """Softmax of a row's direction, as sharp as a function of ln T says: rows whose largest logit is 1 are at T = 1."""

    def __init__(self, sharpness: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.sharpness = sharpness

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        size = logits.amax(-1, keepdim=True)
        return torch.softmax(logits / size * self.sharpness(-size.log()).clamp(0.1, 10), -1)


def matched_wavy(sharpness: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, bool]:
    """ln T and whether it matches, of a head that is as selective as softmax where the sharpness is 1."""
    logits = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0], dtype=torch.float64).view(1, 1, 1, 5)
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(Wavy(sharpness), logits, target)  # type: ignore[arg-type]
    return float(temperature.log()[0]), bool(matched[0])


@pytest.mark.parametrize(
    ("roots", "slope"),
    [((1.2, -2.0, 3.0), 0.1), ((-1.2, 2.0, -3.0), 0.1), ((-1.2, 2.0, -3.0), -0.1), ((0.2, -0.3), 0.5),
     ((-0.2, 0.3), 0.5), ((-4.0,), 0.3), ((4.0,), -0.3)],
)  # fmt: skip
def test_of_several_roots_the_one_nearest_one_is_taken(roots: tuple[float, ...], slope: float) -> None:
    def sharpness(at: torch.Tensor) -> torch.Tensor:
        return 1 + slope * torch.stack([at - root for root in roots]).prod(0)

    scale, matched = matched_wavy(sharpness)
    assert matched
    assert scale == pytest.approx(roots[0], abs=3e-4)


def test_a_number_that_jumps_over_the_target_is_not_matched() -> None:
    scale, matched = matched_wavy(lambda at: torch.where(at < 0.7, 0.5, 3.0))
    assert not matched
    assert scale == pytest.approx(0.7, abs=3e-4)


def test_near_without_a_root_is_not_matched_and_stays() -> None:
    assert matched_wavy(lambda at: torch.full_like(at, 1.001)) == (0.0, False)


def test_a_head_that_is_as_selective_already_stays() -> None:
    flat = torch.zeros(2, 1, 3, 7)
    flat[1] = random_logits(1)[0, :1, :3, :7]
    temperature, matched = matched_temperatures(
        normalizer("softmax"), flat, effective_tokens(normalizer("softmax"), flat)
    )
    assert (temperature.tolist(), matched.tolist()) == ([1.0, 1.0], [True, True])


def test_baseline_logits_are_of_eight_queries_of_eight_windows_from_all_over_the_text() -> None:
    model = word_model()
    cut = cut_windows(TEXT, [16], 15, 0, tokenizer=model.tokenizer)
    logits = baseline_logits(model, cut, SETTINGS.reading())
    assert [part.shape for part in logits.values()] == [(4, 8, 8, 16)] * 2
    every_other = baseline_logits(model, cut[::2], SETTINGS.reading())
    for path, part in logits.items():
        assert torch.equal(part, every_other[path])


@pytest.mark.parametrize(("count", "chosen"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (10, [0, 3, 6, 9])])
def test_windows_are_spread_evenly(count: int, chosen: list[int]) -> None:
    assert spread(range(count), 4) == chosen  # type: ignore[arg-type, comparison-overlap]


def test_heads_that_cannot_be_so_flat_are_left_out() -> None:
    logits = random_logits()
    groups = {"layer": [SimpleNamespace(heads=(0, 1, 2), normalizer=normalizer("topk:k=4"))]}
    window = SimpleNamespace(length=30, index=0)
    settings = SETTINGS.reading()
    numbers = at_equal_selectivity({"layer": logits}, groups, settings, window)  # type: ignore[arg-type]
    reachable = int((effective_tokens(normalizer("softmax"), logits) <= 4).sum())
    assert numbers["heads"] == 3
    assert numbers["matched"] == reachable < 3
    assert len(numbers["alternative"]) == (2 if reachable else 0)


def test_sensitivity_is_the_spectral_norm_at_that_temperature() -> None:
    logits = random_logits(2)[:, :1, :1]
    groups = {"layer": [SimpleNamespace(heads=(0, 1), normalizer=normalizer("sparsemax"))]}
    window = SimpleNamespace(length=30, index=0)
    numbers = at_equal_selectivity({"layer": logits}, groups, SETTINGS.reading(), window)  # type: ignore[arg-type]
    target = effective_tokens(normalizer("softmax"), logits)
    temperature, matched = matched_temperatures(normalizer("sparsemax"), logits, target)
    norms = []
    for head in range(2):
        row = logits[head, 0, 0].double() / temperature[head]
        jacobian = normalizer("sparsemax").jacobian(row) / temperature[head]
        norms.append(float(torch.linalg.matrix_norm(jacobian, 2)))
    assert matched.all()
    assert numbers["alternative"] == pytest.approx([sum(norms) / 2], rel=1e-4)
    softmax = [normalizer("softmax").jacobian(logits[head, 0, 0].double()) for head in range(2)]
    own = sum(float(torch.linalg.matrix_norm(jacobian, 2)) for jacobian in softmax) / 2
    assert numbers["baseline"] == pytest.approx([own], rel=1e-4)


def test_heads_that_were_not_swapped_are_no_part_of_it() -> None:
    """Heads 1 and 3 of four unequal ones, and a layer of which none is swapped: against plain loops."""
    logits = {"first": random_logits(4, least=1.0), "second": random_logits(4, least=0.5)}
    sparse = normalizer("sparsemax")
    groups = {
        "first": [SimpleNamespace(heads=(1, 3), normalizer=sparse), SimpleNamespace(heads=(0, 2), normalizer=None)],
        "second": [SimpleNamespace(heads=(0, 1, 2, 3), normalizer=None)],
    }
    window = SimpleNamespace(length=30, index=0)
    numbers = at_equal_selectivity(logits, groups, SETTINGS.reading(), window)  # type: ignore[arg-type]
    swapped = logits["first"][[1, 3]]
    temperature, matched = matched_temperatures(sparse, swapped, effective_tokens(normalizer("softmax"), swapped))
    assert matched.all()
    assert (numbers["heads"], numbers["matched"]) == (2, 2)
    assert numbers["temperature"] == pytest.approx(float(temperature.prod().sqrt()))

    def by_hand(spec: str, window: int, at: list[float]) -> float:
        jacobians = [
            (normalizer(spec).jacobian(queries / t), t)
            for head, t in zip((1, 3), at, strict=True)
            for queries in logits["first"][head, window].double()
        ]
        return sum(float(torch.linalg.matrix_norm(jacobian, 2)) / t for jacobian, t in jacobians) / len(jacobians)

    at = temperature.tolist()
    assert numbers["alternative"] == pytest.approx([by_hand("sparsemax", w, at) for w in (0, 1)], rel=1e-3)
    assert numbers["baseline"] == pytest.approx([by_hand("softmax", w, [1.0, 1.0]) for w in (0, 1)], rel=1e-3)


def test_no_swapped_head_that_matches_gives_no_number() -> None:
    numbers = made_of("layers.0=relu")
    assert numbers["matched_heads"] == 0
    assert numbers["sensitivity_ratio"] is None
    assert made_of("layers.0.heads.1,3=sparsemax")["matched_heads"] == 1


def made_of(line: str) -> dict[str, Any]:
    return row(made(normalizers=line), line)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("line", "jumps"),
    [("topk:k=4", True), ("topp:p=0.9", True), ("sparsemax", False), ("layers.0=sparsemax; *=threshold", True)],
)
def test_normalizers_that_jump_are_marked(line: str, jumps: bool) -> None:
    comparison = made(normalizers=line)
    assert row(comparison, line)["jumps"] is jumps
    assert row(comparison, "baseline")["jumps"] is False


def test_theory_is_reported_where_there_is_one() -> None:
    expected = abbe.bounds.sensitivity_at_equal_selectivity("entmax15", 512)
    assert theory("entmax:alpha=1.5", 512) == pytest.approx(float(expected))
    assert theory("topk:k=32", 512) is None


def test_every_head_is_spread_by_its_own_value() -> None:
    """Heads stand first among (head, window, query, key), and third from the end where each has a value of its own."""
    logits = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = normalizer("scaled:of=softmax,t=-1/0.5/1,learn=true").double()
    with torch.no_grad():
        weights = _weights(made, logits)
        for head, t in enumerate((-1.0, 0.5, 1.0)):
            torch.testing.assert_close(weights[head], normalizer(f"scaled:of=softmax,t={t}")(logits[head]))


def test_baseline_logits_hold_the_sink_as_their_first_key() -> None:
    model = tiny_runs.model("gpt-oss")
    logits = baseline_logits(model, cut_windows(TEXT, [16], 2, 0, tokenizer=model.tokenizer), SETTINGS.reading())
    sinks = [layer.self_attn.sinks.detach() for layer in model.network.model.layers]
    for part, sink in zip(logits.values(), sinks, strict=True):
        assert part.shape == (4, 2, 8, 17)
        torch.testing.assert_close(part[..., 0], sink[:, None, None].expand(4, 2, 8))
