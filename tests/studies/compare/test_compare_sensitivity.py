"""Selectivity of swapped models by brute force, and sensitivity at equal selectivity."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_runs
import torch
from compare_runs import made, row, word_model
from inside import swapped
from needle_models import TEXT

import abbe
from abbe.models import swap
from abbe.models import windows as cut_windows
from abbe.normalizers import normalizer
from abbe.runs.inputs import window_settings
from abbe.runs.loss import window_losses

READING = window_settings(40, 3, 6, 0, 0.95, 400)

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

    with swap(model, "sparsemax") as running:
        running.listen(hear)
        loss = float(window_losses(model, [window])[0])
    reading = row(made(normalizers="sparsemax", windows=1, queries=40), "sparsemax")
    assert len(heads) == 8  # two layers of four
    for name in ("active", "zeros", "effective_tokens"):
        assert reading[name] == pytest.approx(sum(head[name] for head in heads) / 8, rel=1e-5)
    assert reading["loss"] == pytest.approx(loss, rel=1e-9)


# -- Sensitivity at equal selectivity ---------------------------------------------------------------------------------


def random_logits(heads: int = 3, least: float = 0.3) -> torch.Tensor:
    spread = torch.linspace(least, 3, heads)[:, None, None, None]
    return spread * torch.randn(heads, 2, 6, 30, generator=torch.Generator().manual_seed(4))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("spec", "count"),
    [("sigmoid", 2), ("softpick", 2), ("relu", 0), ("topk:k=8", 2), ("topp:p=0.9", 3), ("sparsemax", 4)],
)
def test_the_root_nearest_one_by_brute_force(spec: str, count: int) -> None:
    """All crossings of a fine grid of ln T. The effective number of relu does not depend on T: it has none."""
    logits, made = random_logits(4), normalizer(spec)
    target = swapped.effective_tokens(normalizer("softmax"), logits)
    fine = torch.linspace(-6.9, 6.9, 1381, dtype=torch.float64)
    above = torch.stack([swapped.effective_tokens(made, logits, at.exp().expand(4)) - target for at in fine])
    temperature, matched = swapped.matched_temperatures(made, logits, target)
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
    target = swapped.effective_tokens(normalizer("softmax"), logits)
    temperature, matched = swapped.matched_temperatures(Wavy(sharpness), logits, target)  # type: ignore[arg-type]
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
    temperature, matched = swapped.matched_temperatures(
        normalizer("softmax"), flat, swapped.effective_tokens(normalizer("softmax"), flat)
    )
    assert (temperature.tolist(), matched.tolist()) == ([1.0, 1.0], [True, True])


def test_baseline_logits_are_of_eight_queries_of_eight_windows_from_all_over_the_text() -> None:
    model = word_model()
    cut = cut_windows(TEXT, [16], 15, 0, tokenizer=model.tokenizer)
    logits = swapped.baseline_logits(model, cut, READING)
    assert [part.shape for part in logits.values()] == [(4, 8, 8, 16)] * 2
    every_other = swapped.baseline_logits(model, cut[::2], READING)
    for path, part in logits.items():
        assert torch.equal(part, every_other[path])


@pytest.mark.parametrize(("count", "chosen"), [(1, [0]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (10, [0, 3, 6, 9])])
def test_windows_are_spread_evenly(count: int, chosen: list[int]) -> None:
    assert swapped.spread(range(count), 4) == chosen  # type: ignore[arg-type, comparison-overlap]


def at_equal(logits: dict[str, torch.Tensor], **groups: list[tuple[tuple[int, ...], str | None]]) -> dict[str, Any]:
    """Sensitivities of groups of heads under these specs, by layer."""
    named = {
        path: [SimpleNamespace(heads=heads, normalizer=spec and normalizer(spec)) for heads, spec in of_layer]
        for path, of_layer in groups.items()
    }
    window: Any = SimpleNamespace(length=30, index=0)
    return dict(swapped.at_equal_selectivity(logits, named, READING, window))


def test_heads_that_were_not_swapped_are_no_part_of_it() -> None:
    """Heads 1 and 3 of four unequal ones, and a layer of which none is swapped: spectral norms of plain loops."""
    logits = {"first": random_logits(4, least=1.0), "second": random_logits(4, least=0.5)}
    sparse = normalizer("sparsemax")
    numbers = at_equal(logits, first=[((1, 3), "sparsemax"), ((0, 2), None)], second=[((0, 1, 2, 3), None)])
    both = logits["first"][[1, 3]]
    target = swapped.effective_tokens(normalizer("softmax"), both)
    temperature, matched = swapped.matched_temperatures(sparse, both, target)
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
    assert swapped.theory("entmax:alpha=1.5", 512) == pytest.approx(float(expected))
    assert swapped.theory("topk:k=32", 512) is None


def test_every_head_is_spread_by_its_own_value() -> None:
    """Heads stand first among (head, window, query, key), and third from the end where each has a value of its own."""
    logits = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = normalizer("scaled:of=softmax,t=-1/0.5/1,learn=true").double()
    with torch.no_grad():
        weights = swapped._weights(made, logits)
        for head, t in enumerate((-1.0, 0.5, 1.0)):
            torch.testing.assert_close(weights[head], normalizer(f"scaled:of=softmax,t={t}")(logits[head]))


def test_baseline_logits_hold_the_sink_as_their_first_key() -> None:
    model = tiny_runs.model("gpt-oss")
    logits = swapped.baseline_logits(model, cut_windows(TEXT, [16], 2, 0, tokenizer=model.tokenizer), READING)
    sinks = [layer.self_attn.sinks.detach() for layer in model.network.model.layers]
    for part, sink in zip(logits.values(), sinks, strict=True):
        assert part.shape == (4, 2, 8, 17)
        torch.testing.assert_close(part[..., 0], sink[:, None, None].expand(4, 2, 8))
