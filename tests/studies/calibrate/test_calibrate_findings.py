"""What is found in a calibration, and how many held-out windows it takes; the sentences stand in `sentences.txt`."""

from __future__ import annotations

import pytest
import torch
from made_up_calibration import ALREADY, OWN, UNDONE, WORSE, found, heads_with_zeros, parameters, twice

CLAIMS = ("regains", "makes it worse", "gains", "loses", "no difference")


@pytest.mark.parametrize(("windows", "level"), [(1, 0.95), (2, 0.95), (5, 0.95), (4, 0.9)])
@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_few_windows_tell_numbers_but_no_change(windows: int, level: float, change: float) -> None:
    own = [2.0 + 0.01 * i for i in range(windows)]
    swapped, fitted, tuned = ([loss + by for loss in own] for by in (3.0, 3.0 + change, 3.0 + 2 * change))
    for one in found(own, swapped, fitted, tuned, level=level)[:2]:
        assert not any(claim in one.sentence for claim in CLAIMS)
        assert one.numbers["gain"] == pytest.approx(-change)
        assert (one.numbers["gain_low"] is None) == (windows == 1)


@pytest.mark.parametrize(("windows", "level"), [(6, 0.95), (5, 0.9)])
def test_as_many_as_are_needed_tell_a_change(windows: int, level: float) -> None:
    own = [2.0] * windows
    for one in found(own, [3.0] * windows, [2.5] * windows, own, level=level)[:2]:
        assert "gains 0.500 nats" in one.sentence


@pytest.mark.quick(2)
@pytest.mark.parametrize("windows", [2, 3, 4, 6])
def test_noise_seldom_counts_as_a_change(windows: int) -> None:
    generator = torch.Generator().manual_seed(windows)
    claimed = 0
    for _ in range(150):
        own, swapped, fitted = torch.randn(3, windows, generator=generator, dtype=torch.float64).add(9).tolist()
        sentence = found(own, swapped, fitted)[0].sentence
        claimed += any(claim in sentence for claim in ("regains", "makes it worse"))
    assert claimed == 0 if windows < 6 else claimed < 20


@pytest.mark.parametrize(
    ("tuned", "pooled", "dense"),
    [
        (None, {"before": (0.4 + 3 * 0.2) / 4, "after": 0.05}, (0, 0)),
        ([0.3, 0.001], {"tuned": (0.6 + 3 * 0.2) / 4}, (0, 1)),
    ],
)
def test_outputs_are_pooled_and_zeros_are_those_of_the_last_stage(
    tuned: list[float] | None, pooled: dict[str, float], dense: tuple[int, int]
) -> None:
    outputs, zeros = found(heads=heads_with_zeros([0.9, 0.9], [0.0, 0.5], tuned))
    assert outputs.numbers | pooled == pytest.approx(outputs.numbers)
    assert ("tuned" in outputs.numbers) == (tuned is not None)
    assert zeros.heads == (dense,)
    assert len(found(heads=heads_with_zeros([0.05, 0.9], [0.0, 0.5]))) == 1


def test_heads_that_are_softmax_again_come_first() -> None:
    """With learn=true a normalizer may end as the softmax that it is fitted to."""

    def topics(*names: str, heads: int = 2, of: object = UNDONE) -> list[str]:
        return [one.topic for one in twice(OWN, WORSE, OWN, heads=of, fitted=parameters(*names, heads=heads))]

    assert topics("alpha", "t") == ["softmax again", "loss", "outputs"]
    assert topics("a.alpha", heads=1)[0] == "softmax again"
    for same in ("t", "a.t"):  # softmax at another temperature matches softmax, of course
        assert topics(same)[0] == "loss"
    assert topics("alpha", of=ALREADY)[0] == "loss"  # nothing was there to be undone
    assert twice(OWN, WORSE, OWN, heads=UNDONE, fitted=parameters("alpha"))[0].heads == ((0, 0), (0, 1))
