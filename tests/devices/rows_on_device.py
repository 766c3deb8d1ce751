"""Checks of everything that makes weights of rows: normalizers, attention and the entmax package.

Numbers are those of the CPU without kernels, exactly, unless a check says why not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest import mock

import normalizer_cases as cases
import torch
from device_checks import DEVICE, Checks, equal_on_both, moved, with_gradients
from inside import attention_attend, attention_blocks
from torch import Tensor

import abbe
from abbe import entmax

checks = Checks()


# -- The device itself ------------------------------------------------------------------------------------------------


def writes(to: Tensor, value: Tensor) -> None:
    to[torch.tensor([0, 1])] = value


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "a tensor on the CPU": lambda x: x + torch.ones(4),
    "a CPU tensor that it has no part of": lambda x: torch.ones(4) * x.sum(),
    "a tensor on another device of its kind": lambda x: x + x.to("pretend:1"),
    "a number on another device of its kind": lambda x: x + x.sum().to("pretend:1"),
    "an index into a CPU tensor": lambda x: torch.ones(4)[x > 0],
    "CPU values for its entries": lambda x: writes(x, torch.zeros(2)),
    "CPU tensors beside its own": lambda x: torch.cat([x, torch.ones(4)]),
    "a generator of the CPU": lambda x: torch.rand(4, device=x.device, generator=torch.Generator()),
    "numpy": lambda x: x.numpy(),
    "a device that is not there": lambda x: x.to("pretend:2"),
}


@checks.add("the device refuses what real ones refuse", quick=True)
def refusals() -> None:
    for what, wrong in REFUSED.items():
        try:
            wrong(torch.arange(4.0, device=DEVICE))
        except (RuntimeError, TypeError):
            continue
        raise AssertionError(f"it takes {what}")
    x = torch.arange(4.0, device=DEVICE)
    drawn = torch.rand(4, generator=torch.Generator(DEVICE), device=DEVICE)
    assert all(one.device.type == DEVICE for one in (x + torch.tensor(1.0), x[torch.tensor([1, 2])], drawn))


# -- Normalizers ------------------------------------------------------------------------------------------------------

_KNOWN = {case.spec for case in cases.CASES}
_EXAMPLES = [info.example for info in abbe.list_normalizers() if info.example not in _KNOWN]


def normalizer_weights(case: cases.Case, dtype: torch.dtype) -> None:
    """Weights, gradients of logits and learned parameters, with and without a mask; the Jacobian."""

    def make() -> Any:
        shape = 2, max(3, case.heads), 4, 9
        return (
            case.make(torch.float32),
            cases.random_logits(*shape, dtype=dtype).requires_grad_(),
            cases.random_mask(*shape),
        )

    def work(given: Any) -> Any:
        normalizer, logits, mask = given
        moved(normalizer, logits.device)
        learned = [logits, *normalizer.parameters()]
        rows = (
            with_gradients(normalizer(logits, mask), learned),
            with_gradients(normalizer(logits, check=True), learned),
        )
        return *rows, normalizer.jacobian(logits.detach()[..., :1, :], mask[..., :1, :]), normalizer.spec

    equal_on_both(make, work)


for _case in (*cases.CASES, *map(cases.Case, _EXAMPLES)):
    _quick = _case.spec in {info.example for info in abbe.list_normalizers()}
    checks.add(f"normalizer {_case}", _case, torch.float32, quick=_quick)(normalizer_weights)
    checks.add(f"normalizer {_case} in bfloat16", _case, torch.bfloat16)(normalizer_weights)


@checks.add("a second derivative", quick=True)
def second_derivative() -> None:
    def work(logits: Tensor) -> Any:
        weights = abbe.normalizer("entmax:alpha=1.5")(logits)
        (grad,) = torch.autograd.grad(weights[..., 0].sum(), logits, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), logits)

    equal_on_both(lambda: cases.random_logits(3, 4, dtype=torch.float32).requires_grad_(), work)


# -- Attention --------------------------------------------------------------------------------------------------------


def problem(queries: int = 6, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = (2, 4, queries, 8), (2, 2, 10, 8), (2, 2, 10, 8)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "causal": lambda: {"causal": True},
    "mask": lambda: {"mask": cases.random_mask(2, 1, 6, 10)},
    "window": lambda: {"causal": True, "window": 3},
    "softcap": lambda: {"softcap": 0.8, "scale": 0.5},
    "sinks": lambda: {"sink": torch.linspace(-1, 1, 4).requires_grad_()},
    "sink": lambda: {"sink": 0.5, "causal": True},
    "bias": lambda: {"position_bias": torch.linspace(-1, 1, 240).view(4, 6, 10).requires_grad_()},
    "dropout": lambda: {"dropout": 0.3},
    "names of torch": lambda: {"attn_mask": cases.random_mask(6, 10), "dropout_p": 0.0, "enable_gqa": True},
    "all": lambda: {
        "causal": True, "mask": cases.random_mask(2, 1, 6, 10), "window": 4, "softcap": 2.0,
        "sink": torch.linspace(-1, 1, 4).requires_grad_(),
        "position_bias": torch.linspace(-1, 1, 10).expand(4, 6, 10).clone().requires_grad_(),
    },
}  # fmt: skip
SPECS = "softmax", "sparsemax", "entmax:alpha=1.5,learn=true,heads=4", "topk:k=3"


def attended(spec: str, option: str, block_bytes: int) -> None:
    """Output, weights and gradients; a small block is many blocks."""

    def make() -> Any:
        return problem(), OPTIONS[option]()

    def work(given: Any) -> Any:
        (q, k, v), options = given
        normalizer = abbe.normalizer(spec).to(q.device)
        learned = [q, k, v, *(x for x in options.values() if isinstance(x, Tensor) and x.requires_grad)]
        learned += normalizer.parameters()
        torch.manual_seed(3)  # of dropout
        with (
            mock.patch.object(attention_attend, "BLOCK_BYTES", block_bytes),
            mock.patch.object(attention_blocks, "BLOCK_BYTES", block_bytes),
        ):
            rows = with_gradients(abbe.attention(q, k, v, normalizer, **options), learned)
            torch.manual_seed(3)
            with torch.no_grad():
                alone = abbe.attention(q, k, v, normalizer, **options)
                weights = abbe.attention(q, k, v, normalizer, return_weights=True, **options)
        return rows, alone, weights

    # Torch's softmax kernel of the CPU sums in another order than its plain operations, which other devices take here.
    equal_on_both(make, work, 1e-6 if spec == "softmax" else 0.0)


for _option in OPTIONS:
    for _spec in SPECS:
        _quick = _option == "all" and _spec in ("softmax", "sparsemax")
        checks.add(f"attention {_spec} {_option}", _spec, _option, 1 << 22, quick=_quick)(attended)
        _quick = _option == "dropout" and _spec == "topk:k=3"
        checks.add(f"attention {_spec} {_option} in blocks", _spec, _option, 1 << 9, quick=_quick)(attended)


@checks.add("attention in half precision")
def half_attention() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for spec in SPECS[1:]:
            equal_on_both(
                lambda dtype=dtype: problem(dtype=dtype),
                lambda given, spec=spec: with_gradients(
                    abbe.attention(*given, abbe.normalizer(spec).to(given[0].device), causal=True), given
                ),
            )


@checks.add("attention in transforms")
def transformed() -> None:
    def work(given: list[Tensor]) -> Any:
        q, k, v = (x.detach() for x in given)
        over_batch = torch.func.vmap(lambda q, k, v: abbe.attention(q, k, v, "entmax:alpha=1.5"))(q, k, v)
        return over_batch, torch.func.jacrev(lambda q: abbe.attention(q, k, v, "sparsemax")[..., 0].sum((0, 1)))(q)

    equal_on_both(problem, work)


# -- The entmax package -----------------------------------------------------------------------------------------------


def sparse_map(name: str) -> None:
    def make() -> Any:
        x = cases.random_logits(3, 7, 4, dtype=torch.float32).requires_grad_()
        return x, torch.tensor([[[1.2, 1.5, 1.8, 2.0]]]).requires_grad_()

    def work(given: Any) -> Any:
        x, numbers = given
        function = getattr(entmax, name)
        takes_numbers = "alpha" in inspect.signature(function).parameters or "budget" in name
        plain = with_gradients(function(x, dim=1), [x])
        return plain, with_gradients(function(x, numbers, dim=1), [x, numbers]) if takes_numbers else ()

    equal_on_both(make, work)


def sparse_loss(name: str) -> None:
    def make() -> Any:
        return cases.random_logits(6, 5, dtype=torch.float32).requires_grad_(), torch.tensor([0, 1, 4, 2, -100, 3])

    def work(given: Any) -> Any:
        x, target = given
        return with_gradients(getattr(entmax, name)()(x, target), [x])

    equal_on_both(make, work)


for _name in entmax.__all__:
    if _name.endswith("Loss"):
        checks.add(f"entmax.{_name}", _name, quick=_name == "EntmaxBisectLoss")(sparse_loss)
    elif _name[0].islower() and not _name.endswith("_loss"):
        checks.add(f"entmax.{_name}", _name, quick=_name == "entmax_bisect")(sparse_map)
