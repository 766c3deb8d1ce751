"""The optimizers of the lab are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lab_cases import choice, small, untrained
from torch import nn

from abbe.lab.optimizers import Factors, Optimizer, compensation, orthogonalised
from abbe.lab.run import _groups

RATE, STEPS = 0.05, 12
Make = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
TORCH: dict[str, Make] = {
    "sgd": lambda parameters, decay: torch.optim.SGD(parameters, lr=RATE, weight_decay=0.0),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, lr=RATE, weight_decay=decay),
    "muon": lambda parameters, decay: torch.optim.Muon(
        parameters, lr=RATE, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
    ),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", TORCH)
def test_steps_are_those_of_torch(name: str, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch iterates Muon's Newton-Schulz steps in bfloat16; in float64 both can be compared to rounding.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 7), (7, 4), (5, 5)]
    start = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    theirs = [nn.Parameter(x.clone()) for x in start]
    mine = [nn.Parameter(x[None].clone()) for x in start]
    reference = TORCH[name](theirs, decay)
    optimizer = Optimizer(name, [(p, Factors(), True) for p in mine], decay)
    for step in range(STEPS):
        for one, other in zip(mine, theirs, strict=True):
            gradient = torch.randn(*other.shape, generator=generator, dtype=torch.float64) * 10.0 ** (step % 5 - 3)
            one.grad, other.grad = gradient[None].clone(), gradient
            if name == "sgd" and decay:  # torch's SGD has only a decay that is part of the gradient
                other.data.mul_(1 - RATE * decay)
        reference.step()
        optimizer.step(RATE)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one[0], other, rtol=1e-9, atol=1e-12)


def test_seeds_are_stepped_one_by_one() -> None:
    generator = torch.Generator().manual_seed(1)
    start, gradient = (torch.randn(3, 4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    for name in TORCH:
        together = nn.Parameter(start.clone())
        alone = [nn.Parameter(x[None].clone()) for x in start]
        made = [Optimizer(name, [(p, Factors(), True)]) for p in (together, *alone)]
        together.grad = gradient.clone()
        for one, part in zip(alone, gradient, strict=True):
            one.grad = part[None].clone()
        for optimizer in made:
            optimizer.step(RATE)
        assert torch.allclose(together, torch.cat(list(alone)), rtol=1e-12)


def test_muon_leaves_what_is_no_inner_matrix_to_adamw() -> None:
    generator = torch.Generator().manual_seed(2)
    start, gradient = (torch.randn(1, 4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    ends = []
    for name in ("muon", "adamw"):
        parameter = nn.Parameter(start.clone())
        parameter.grad = gradient.clone()
        Optimizer(name, [(parameter, Factors(), False)]).step(RATE)
        ends.append(parameter.detach())
    assert torch.equal(*ends)


def test_muon_leaves_what_a_normalizer_learns_to_adamw() -> None:
    network = untrained(small("mqar"), 16, heads=2, normalizer="learned-temperature:heads=2")
    inner = {
        name
        for (name, _), (_, _, is_inner) in zip(
            network.named_parameters(), _groups(network, choice("mqar", optimizer="muon")), strict=True
        )
        if is_inner
    }
    assert any("normalizers" in name for name, x in network.named_parameters() if x.dim() == 3)
    assert len(inner) >= 4
    assert all(name.endswith("weight") and "normalizers" not in name for name in inner)


def test_orthogonalised_has_singular_values_near_one() -> None:
    matrices = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("sgd", Factors(0.01, 1.0, 100.0)), ("adamw", Factors(0.1, 10.0, 10.0)), ("muon", Factors(0.1, 10.0, 10.0))],
)
def test_compensation_by_hand(optimizer: str, expected: Any) -> None:
    made = compensation(optimizer, 0.1)
    assert vars(made) == pytest.approx(vars(expected))
    assert vars(compensation(optimizer, 1.0)) == vars(Factors())
