"""Checks of everything that works on rows: normalizers, attention, the entmax package, bounds and measures.

Numbers are those of the CPU without kernels, exactly, unless a check says why not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest import mock

import normalizer_cases as cases
import row_cases
import torch
from device_checks import DEVICE, Checks, moved, same, torch_path
from inside import attention_attend, attention_blocks, measures_rows, normalizers_dispatch
from torch import Tensor

import abbe
from abbe import bounds, entmax, measures

checks = Checks()


@contextmanager
def kernels_for_all() -> Iterator[None]:
    """Problems of any size would go to kernels, if they were on the CPU."""
    with (
        mock.patch.object(normalizers_dispatch, "FUSED_FROM", 1),
        mock.patch.object(measures_rows, "FUSED_FROM", 1),
        mock.patch.object(attention_attend, "SPARSE_FROM", 1),
        mock.patch.object(attention_attend, "SPARSE_QUERIES", 1),
    ):
        yield


def equal_on_both(make: Callable[[], Any], work: Callable[[Any], Any], rel: float = 0.0) -> None:
    """Make the inputs, work on them on the CPU and on the device, compare."""
    with torch_path():
        wanted = work(make())
    with kernels_for_all():
        same(work(moved(make())), wanted, rel)


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of its products with some fixed numbers."""
    weights = torch.linspace(-1, 1, out.numel()).sin().view(out.shape).to(out.device, out.dtype)
    return [out, *torch.autograd.grad(out, inputs, weights, materialize_grads=True)]


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
        learned = [logits, *normalizer.parameters()]
        rows = (
            with_gradients(normalizer(logits, mask), learned),
            with_gradients(normalizer(logits, check=True), learned),
        )
        return *rows, normalizer.jacobian(logits.detach()[..., :1, :], mask[..., :1, :]), normalizer.spec

    with torch_path():
        wanted = work(make())
    with kernels_for_all():
        normalizer, *tensors = make()
        same(work((moved(normalizer), *moved(tensors))), wanted)


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
        made = getattr(entmax, name)()
        if not isinstance(made, torch.nn.Module):
            raise TypeError(name)
        return with_gradients(made(x, target), [x])

    equal_on_both(make, work)


for _name in entmax.__all__:
    if _name.endswith("Loss"):
        checks.add(f"entmax.{_name}", _name, quick=_name == "EntmaxBisectLoss")(sparse_loss)
    elif _name[0].islower() and not _name.endswith("_loss"):
        checks.add(f"entmax.{_name}", _name, quick=_name == "entmax_bisect")(sparse_map)


# -- Bounds -----------------------------------------------------------------------------------------------------------


def tried(statement: bounds.Statement) -> None:
    """Both sides of a statement at random points of the smallest size."""

    def make() -> bounds.Point:
        return statement.sampler(torch.Generator().manual_seed(0), 20, statement.sizes[0])

    with torch_path():
        point = make()
        wanted = statement.measured(point), statement.bound(point), statement.ratio(point)
    placed = bounds.Point(moved(make().values), statement.sizes[0])
    # Singular values depend on the layout of a matrix in memory, in the last digits.
    rel = 1e-14 if statement.section == "gradient" else 0.0
    same((statement.measured(placed), statement.bound(placed), statement.ratio(placed)), wanted, rel)


_QUICK = "top-mass", "log-margin", "theorem-1", "expected-distance-upper", "sphere-lower", "deletion-error"
for _statement in bounds.catalogue():
    checks.add(f"bounds {_statement.name}", _statement, quick=_statement.name in _QUICK)(tried)


# -- Measures ---------------------------------------------------------------------------------------------------------


def placed(rows: measures.Rows) -> measures.Rows:
    given = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{name: x.to(DEVICE) for name, x in given.items() if isinstance(x, Tensor)})


def all_readings(rows: measures.Rows) -> dict[str, measures.Reading]:
    """Every measure, the generators on the CPU as in the studies."""
    draw = torch.Generator().manual_seed(1)
    sets = measures.choose_sets(rows, (1, 2, 5), draw)
    tokens = (torch.arange(rows.keys) % 7).to(rows.logits.device)
    positions = torch.linspace(0, rows.keys - 1, rows.queries).round().long()
    normalizer = abbe.normalizer("softmax")
    readings: dict[str, Any] = measures.dispersion(rows) | measures.patterns(rows, positions, tokens)
    readings |= measures.selection(rows, sets) | measures.decay(rows) | measures.geometry(rows, sets)
    readings |= measures.sensitivity(rows, normalizer, (0.1, 1.0), draw)
    if rows.softmax or rows.sink:  # others have none
        readings |= measures.differences(rows, (0.1, 1.0), (0.01, 1.0), draw)
    readings |= measures.expected_distance(rows, sets) | measures.distance_formula(rows, sets)
    readings |= {"separable": measures.separable_weight(rows), "active": measures.active_keys(rows)}
    return readings


def measured(rows: measures.Rows) -> Any:
    """All readings of two blocks and their means."""
    readings = all_readings(rows)
    state = measures.update(measures.update({}, readings), readings)
    parts = {name: [x for x in vars(reading).values() if isinstance(x, Tensor)] for name, reading in readings.items()}
    means = {name: [x for x in vars(one).values() if x is not None] for name, one in measures.compute(state).items()}
    return parts, means


def rows_measured(rows: measures.Rows) -> None:
    with torch_path():
        wanted = measured(rows)
    with kernels_for_all():
        same(measured(placed(rows)), wanted)


for _spec, _mask in (("softmax", "causal"), ("sink:b=0.5", "window"), ("sparsemax", "all"), ("sigmoid", "some")):
    for _dtype in (torch.float32, torch.float64):
        _rows = row_cases.random_rows(spec=_spec, mask=_mask, groups=2, dtype=_dtype)
        _quick = _spec == "softmax" and _dtype == torch.float32
        checks.add(f"measures {_spec} {_mask} {_dtype}", _rows, quick=_quick)(rows_measured)
for _name, _rows in row_cases.nasty_rows(torch.float32).items():
    checks.add(f"measures {_name}", _rows)(rows_measured)


@checks.add("sensitivity of another normalizer", quick=True)
def other_sensitivity() -> None:
    rows = row_cases.random_rows(dtype=torch.float32)

    def work(rows: measures.Rows) -> Any:
        normalizer, draw = abbe.normalizer("entmax:alpha=1.5"), torch.Generator().manual_seed(1)
        return {name: one.value for name, one in measures.sensitivity(rows, normalizer, (0.5,), draw).items()}

    with torch_path():
        wanted = work(rows)
    with kernels_for_all():
        same(work(placed(rows)), wanted)


@checks.add("statistics")
def statistics() -> None:
    draw = torch.Generator().manual_seed(0)
    values, control = (torch.rand(9, 3, generator=draw, dtype=torch.float64) for _ in "ab")

    def work(values: Tensor, control: Tensor) -> Any:
        ends = measures.bootstrap_interval(values, resamples=50, seed=0)
        return [*ends], [*measures.ks_test(values[:, 0], control[:, 0])], measures.resampled_means(values, 50, 0)

    same(work(values.to(DEVICE), control.to(DEVICE)), work(values, control))
