"""What train_length tests on long sets, against plain loops over items."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lab_cases import choice, small
from torch import Tensor, nn

import abbe
from abbe.lab.run import CPU, _generator, _Run

SEEDS, SIZE = (0, 1), 24


def trained(normalizer: str, trained_with: str = "") -> _Run:
    asked = choice(
        "maximum", normalizer=normalizer, trained_with=trained_with, seeds=SEEDS, steps=60, batch=32, rate=0.03,
        test_size=SIZE, precision="float64",
    )  # fmt: skip
    run = _Run(small("maximum"), asked, lambda: None, CPU)
    for step in range(1, asked.steps + 1):
        run.step(step)
    return run


def one_by_one(run: _Run, place: int, length: int, rule: Any) -> tuple[float, float]:
    """Share of right answers and mean entropy; `rule` makes weights of a list of logits."""
    weights = {name: x[place] for name, x in run.network.state_dict().items() if "normalizers" not in name}

    def through(name: str, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(x @ weights[f"{name}.first.weight"] + weights[f"{name}.first.bias"][0])
        return hidden @ weights[f"{name}.second.weight"] + weights[f"{name}.second.bias"][0]

    batch = run.task.sample(_generator(SEEDS[place], "test"), SIZE, length, held_out=True)
    query = weights["question.weight"][0] @ weights["attention.query.weight"]
    right, entropy = 0, 0.0
    for items, target in zip(batch.inputs[0].double(), batch.targets, strict=True):
        inner = through("items", items)
        logits = [float(query @ key) / math.sqrt(len(query)) for key in inner @ weights["attention.key.weight"]]
        chosen = rule(logits)
        read = sum(w * value for w, value in zip(chosen, inner @ weights["attention.value.weight"], strict=True))
        answer = through("answer", read @ weights["attention.out.weight"])
        right += int(answer.argmax()) == int(target)
        entropy -= sum(w * math.log(w) for w in chosen if w > 0)
    return right / SIZE, entropy / SIZE


def softmax(logits: list[float]) -> list[float]:
    scores = [math.exp(x - max(logits)) for x in logits]
    return [x / sum(scores) for x in scores]


def hard(logits: list[float]) -> list[float]:
    """All weight on the largest."""
    return [float(i == logits.index(max(logits))) for i in range(len(logits))]


@pytest.mark.parametrize(
    ("normalizer", "trained_with", "rule"),
    [("softmax", "", softmax), ("topk:k=1", "softmax", hard), ("sparsemax", "", None), ("ssmax:learn=true", "", None)],
)
def test_accuracy_and_entropy_of_a_length(normalizer: str, trained_with: str, rule: Any) -> None:
    run: Any = trained(normalizer, trained_with)
    measured = [one["lengths"] for one in run.content()["seeds"]]
    for place in range(len(SEEDS)):
        mapped = run.network.attention.normalizer_of(place)
        for length in (8, 32):
            weights = rule or (lambda logits, of=mapped: of(torch.tensor(logits).double()).tolist())
            accuracy, entropy = one_by_one(run, place, length, weights)
            assert measured[place][str(length)] == pytest.approx([accuracy, entropy], rel=1e-5, abs=1e-12)
    assert measured[0] != measured[1] or normalizer == "topk:k=1"


def test_entropy_of_weights_that_do_not_sum_to_one_is_that_of_their_shares() -> None:
    """As in `abbe.measures`."""
    run: Any = trained("sigmoid")
    measured = run.content()["seeds"][0]["lengths"]["32"]

    def shares(logits: list[float]) -> list[float]:
        weights = abbe.normalizer("sigmoid")(torch.tensor(logits).double())
        assert abs(float(weights.sum()) - 1) > 0.01
        return (weights / weights.sum()).tolist()

    assert measured[1] == pytest.approx(one_by_one(run, 0, 32, shares)[1], rel=1e-5)


@pytest.mark.slow
def test_uniform_priorities_disperse_as_the_page_derives() -> None:
    """Logits of slope s, n items: softmax has a largest weight of s/n and an entropy of 1 + ln(n/s)."""
    slope, generator = 50.0, torch.Generator().manual_seed(3)
    largest: dict[str, list[float]] = {"softmax": [], "entmax:alpha=1.5": [], "sparsemax": []}
    for n in (4096, 16384):
        priorities = torch.rand(256, n, generator=generator, dtype=torch.float64)
        gaps = priorities.topk(2).values.diff().abs()
        assert float(gaps.mean()) == pytest.approx(1 / (n + 1), rel=0.2)  # 256 gaps: 6 % standard error
        for spec, some in largest.items():
            weights = abbe.normalizer(spec)(slope * priorities)
            some.append(float(weights.amax(-1).mean()))
            if spec == "softmax":
                assert some[-1] == pytest.approx(slope / n, rel=0.05)
                entropy = float(torch.special.entr(weights).sum(-1).mean())
                assert entropy == pytest.approx(1 + math.log(n / slope), abs=0.05)
    for spec, alpha in zip(largest, (1.0, 1.5, 2.0), strict=True):
        assert largest[spec][0] / largest[spec][1] == pytest.approx(4 ** (1 / alpha), rel=0.05)
