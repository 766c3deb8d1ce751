"""What holds for every bound: mistakes are one line, absent keys count nowhere, gradients, and a batch is its rows."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable

import pytest
import torch
from bound_cases import Placed, close, exact_cases, marked, padded, tensor, top
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import abbe
from abbe import bounds

A = tensor(0.5, 0.3, 0.2)
X = tensor([1.0, 0.0], [0.0, 1.0], [1.0, 1.0])
HIDE = torch.tensor([True, True, False])


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(abbe.AbbeError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 200
    return text


# One good call of every function, by keyword.
GOOD: dict[str, dict[str, object]] = {
    "change_bound": {"change": tensor(1.0, 2.0), "temperature": 1.0},
    "change_bound_by_norm": {"size": 1.0, "temperature": 1.0},
    "coverage_paper": {"single": 0.5, "heads": 3},
    "distance": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "distance_bound": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "distance_bound_root_paper": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "distance_sandwich": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "effective_number": {"weights": A, "mask": HIDE},
    "effective_number_bound": {"spread": 1.0, "keys": 3, "temperature": 1.0},
    "entmax_contenders": {"logits": tensor(1.0, 2.0, 3.0), "alpha": 1.5, "mask": HIDE},
    "entmax_gap": {"alpha": 1.5},
    "entropy": {"weights": A, "mask": HIDE},
    "entropy_deficit_bound": {"spread": 1.0, "temperature": 1.0},
    "entropy_deficit_bound_loose": {"spread": 1.0, "temperature": 1.0},
    "expected_distance_bound_paper": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "expected_distance_bounds": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "expected_distance_ceiling": {"count": 1, "largest_norm": 1.0},
    "expected_distance_exact": {"weights": A, "vectors": X, "count": 1},
    "expected_net_distance_squared": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "frobenius_norm": {"weights": A, "temperature": 1.0},
    "frobenius_norm_bound": {"weights": A, "temperature": 1.0},
    "general_weight_range": {"smallest": 1.0, "largest": 2.0, "keys": 3},
    "general_weight_range_paper": {"smallest": 1.0, "largest": 2.0, "keys": 3},
    "inf_to_one_norm": {"weights": A, "temperature": 1.0},
    "inf_to_one_supremum": {"temperature": 1.0},
    "largest_entry": {"weights": A, "temperature": 1.0},
    "lipschitz": {"spec": "softmax", "keys": 3},
    "log_derivative_bound": {"largest_log_derivative": 1.0},
    "margin_needed": {"keys": 3, "error": 0.1, "temperature": 1.0, "winners": 1},
    "mass_law": {"fraction_kept": 0.1, "deviation": 1.0},
    "net_distance": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "net_distance_bound": {"weights": A, "vectors": X, "count": 1, "mask": HIDE},
    "one_norm": {"weights": A, "temperature": 1.0},
    "precision_recall": {"weights": A, "vectors": X, "count": 1, "metric": "cosine", "mask": HIDE},
    "selected_set": {"weights": A, "count": 1, "mask": HIDE},
    "selective_temperature": {"spec": "softmax", "keys": 3, "error": 0.1},
    "sensitivity_at_equal_selectivity": {"spec": "softmax", "keys": 3, "error": 0.1},
    "separability": {"weights": A, "vectors": X, "count": 1, "radius": 1.0, "mask": HIDE},
    "spectral_norm": {"weights": A, "temperature": 1.0},
    "spectral_norm_bound_paper": {"temperature": 1.0},
    "spectral_norm_bounds": {"weights": A, "temperature": 1.0},
    "spectral_norm_supremum": {"temperature": 1.0},
    "sphere_separability_bounds": {"weights": A, "radius": 1.0, "dimension": 3, "norm_of_vectors": 1.0},
    "sphere_separability_bounds_paper": {"weights": A, "radius": 1.0, "apart": 0.5, "norm_of_vectors": 1.0},
    "sphere_separability_estimate": {"count": 1, "keys": 3, "dimension": 4},
    "top_mass": {"weights": A, "count": 1, "mask": HIDE},
    "top_mass_bounds": {"spread": 1.0, "keys": 3, "count": 1, "temperature": 1.0},
    "truncation_errors": {"weights": A, "values": X, "count": 1, "mask": HIDE},
    "weight_bounds": {"logits": tensor(1.0, 2.0, 3.0), "temperature": 1.0, "mask": HIDE},
    "weight_range": {"spread": 1.0, "keys": 3, "temperature": 1.0},
    "weight_range_paper": {"bound": 1.0, "keys": 3, "temperature": 1.0},
    "winners_mass": {"margin": 1.0, "keys": 3, "temperature": 1.0, "winners": 1},
}

NAN = torch.tensor(math.nan, dtype=torch.float64)
# What is wrong for an argument of this name, wherever it occurs.
BAD: dict[str, list[object]] = {
    "alpha": [1.0, 0.5, -1, math.nan],
    "apart": [math.nan, -0.1],
    "bound": [-1.0, math.nan],
    "change": [tensor(1.0, math.nan)],
    "count": [0, -1, 4, 1.5, math.nan, torch.tensor([1, 0]), torch.tensor([1, 9])],
    "deviation": [-1.0, math.nan],
    "dimension": [0, -3, 2.5, math.nan],
    "error": [0.0, 1.0, -0.1, 1.2, math.nan, tensor(0.1, 1.5)],
    "fraction_kept": [0.0, 1.0, -0.1, 7, math.nan],
    "heads": [0, -1, 1.5, math.nan],
    "keys": [0, -2, 1.5, math.nan],
    "largest": [0.0, -1.0, math.nan],
    "largest_log_derivative": [-1.0, math.nan],
    "largest_norm": [-1.0, math.nan],
    "logits": [tensor(1.0, math.nan, 0.0)],
    "margin": [math.nan],
    "mask": [torch.ones(3), torch.ones(4, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool), [True] * 3, 1],
    "metric": ["manhattan"],
    "norm_of_vectors": [0.0, -1.0, math.nan],
    "radius": [-1.0, math.nan],
    "single": [-0.1, 1.1, math.nan],
    "size": [-1.0, math.nan],
    "smallest": [0.0, -1.0, math.nan],
    "spec": ["softmx"],
    "spread": [-1.0, math.nan, tensor(1.0, -1.0)],
    "temperature": [0.0, -1.0, math.nan, tensor(1.0, 0.0)],
    "values": [X[:2], X[0], X * NAN, [[1.0]]],
    "vectors": [X[:2], X[0], X * NAN, [[1.0]]],
    "weights": [
        tensor(0.5, -0.1, 0.2),
        tensor(0.9, 0.3, 0.2),
        tensor(0.5, math.nan, 0.2),
        tensor(0.5).squeeze(),
        torch.ones(0),
        [0.5, 0.3, 0.2],
        tensor([0.5, 0.3, 0.2], [0.9, 0.9, 0.2]),
    ],
    "winners": [0, -1, 4, 1.5, math.nan],
}
# Not wrong there: without a row, N has no upper end. `lipschitz` is the normalizer's own method, tested with it.
FINE = {
    ("expected_distance_ceiling", "count", "4"),
    ("expected_distance_ceiling", "count", "tensor([1, 9])"),
    ("lipschitz", "spec", "softmx"),
    ("lipschitz", "keys", "1.5"),
    ("lipschitz", "keys", "nan"),
}


def cases() -> list[object]:
    calls = []
    for function, arguments in GOOD.items():
        for argument in arguments:
            for index, bad in enumerate(BAD[argument]):
                if (function, argument, str(bad)) not in FINE:
                    calls.append(pytest.param(function, argument, bad, id=f"{function}-{argument}-{index}"))
    return calls


def test_every_function_is_here() -> None:
    functions = {name for name, value in vars(bounds).items() if inspect.isfunction(value) and name[0] != "_"}
    assert functions - {"catalogue"} == set(GOOD)


@pytest.mark.parametrize("function", GOOD)
def test_the_good_calls_are_good(function: str) -> None:
    values = getattr(bounds, function)(**GOOD[function])
    for part in values if isinstance(values, tuple) else (values,):
        assert bool(torch.isfinite(torch.as_tensor(part).double()).all())


@pytest.mark.quick(231)
@pytest.mark.parametrize(("function", "argument", "bad"), cases())
def test_a_bad_argument_is_named(function: str, argument: str, bad: object) -> None:
    text = message_of(lambda: getattr(bounds, function)(**{**GOOD[function], argument: bad}))
    assert re.search(rf"\b{argument}\b", text), text


@pytest.mark.parametrize("function", [name for name, args in GOOD.items() if "vectors" in args or "values" in args])
def test_vectors_of_another_batch_are_refused(function: str) -> None:
    arguments = {**GOOD[function], "weights": A.expand(2, 3)}
    arguments.pop("mask", None)
    name = "values" if "values" in arguments else "vectors"
    arguments[name] = X.expand(4, 3, 2)
    assert name in message_of(lambda: getattr(bounds, function)(**arguments))


MARKED = ("distance", "net_distance", "distance_bound", "distance_sandwich", "net_distance_bound", "separability")


@pytest.mark.parametrize("function", [*MARKED, "precision_recall", "truncation_errors"])
def test_a_marked_set_must_fit(function: str) -> None:
    chosen = torch.ones(4, dtype=torch.bool)
    assert "count" in message_of(lambda: getattr(bounds, function)(**{**GOOD[function], "count": chosen}))


@pytest.mark.parametrize("function", ["separability", "precision_recall"])
@pytest.mark.parametrize("chosen", [[False] * 3, [False, False, True]])
def test_a_share_of_no_selected_key_is_refused(function: str, chosen: list[bool]) -> None:
    """Also when the only marked key is absent."""
    arguments = {**GOOD[function], "count": torch.tensor(chosen)}
    assert "count" in message_of(lambda: getattr(bounds, function)(**arguments))


def test_count_is_checked_against_the_visible_keys() -> None:
    assert "1..2" in message_of(lambda: bounds.top_mass(A, 3, HIDE))
    assert "1..2" in message_of(lambda: bounds.distance(A, X, 3, HIDE))
    assert "1..2" in message_of(lambda: bounds.expected_distance_bounds(A, X, 3, HIDE))


def test_weights_may_sum_to_less_than_one_and_absent_ones_to_anything() -> None:
    assert float(bounds.entropy(tensor(0.1, 0.2))) > 0
    assert float(bounds.entropy(tensor(0.5, 0.5, 3.0), HIDE)) == pytest.approx(math.log(2))
    assert float(bounds.entropy(tensor(0.5, 0.5, -3.0), HIDE)) == pytest.approx(math.log(2))


def test_error_leaves_more_than_an_equal_share() -> None:
    assert "error" in message_of(lambda: bounds.selective_temperature("softmax", 2, 0.5))
    assert "error" in message_of(lambda: bounds.sensitivity_at_equal_selectivity("entmax15", 3, 0.7))


def test_an_estimate_needs_an_unselected_key() -> None:
    assert "count" in message_of(lambda: bounds.sphere_separability_estimate(3, 3, 4))
    assert "points" in message_of(lambda: bounds.sphere_separability_estimate(1, 3, 4, points=0))


# -- Absent keys, gradients, batches -----------------------------------------------------------------------------------


def results(function: str, arguments: dict[str, object]) -> tuple[Tensor, ...]:
    result = getattr(bounds, function)(**arguments)
    return tuple(result) if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("function", [name for name, arguments in GOOD.items() if "mask" in arguments])
@given(case=exact_cases(), seed=st.integers(0, 5))
def test_absent_keys_are_removed_keys(function: str, case: Placed, seed: int) -> None:
    """Whatever they hold; what there is for each key is 0 or False there."""
    own = {"weights": case.a, "logits": 4 * case.a, "vectors": case.x, "values": case.x, "count": case.n}
    plain = {name: own.get(name, value) for name, value in GOOD[function].items() if name != "mask"}
    for fill in (0.5, -7.0):
        fills = {"weights": abs(fill), "logits": fill, "vectors": 1 - fill, "values": 1 - fill}
        longer = dict(plain)
        for name in fills.keys() & plain.keys():
            longer[name], mask = padded(own[name], fills[name], seed, dim=-2 if own[name].ndim == 2 else -1)  # type: ignore[union-attr, arg-type]
        longer["mask"] = mask
        for masked, wanted in zip(results(function, longer), results(function, plain), strict=True):
            if masked.shape == mask.shape:
                assert not bool(masked[~mask].any())
                masked = masked[mask]
            close(masked.double(), wanted.double(), rel=1e-9, atol=1e-11)
        if function in MARKED:  # marking an absent key selects nothing
            chosen = torch.zeros_like(mask)
            chosen[mask] = marked(case.keys, top(case.a, case.n))
            for one, other in zip(
                results(function, longer | {"count": chosen}),
                results(function, longer | {"count": chosen | ~mask}),
                strict=True,
            ):
                close(one.double(), other.double(), atol=0)


ALONE = ("lipschitz", "selective_temperature", "sensitivity_at_equal_selectivity", "sphere_separability_estimate")
COUNTS = ("precision_recall", "separability", "selected_set", "entmax_contenders", "entmax_gap")
SMOOTH = [name for name in GOOD if name not in (*COUNTS, *ALONE)]
NUMBERS = ("keys", "count", "heads", "winners", "dimension", "alpha", "mask", "metric", "spec")  # not differentiated


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("function", SMOOTH)
def test_gradients(function: str, masked: bool) -> None:
    fixed = {name: value for name, value in GOOD[function].items() if name != "mask" or masked}
    if masked and "mask" not in fixed:
        return
    rows = {"weights": tensor(0.37, 0.31, 0.22), "logits": tensor(0.3, 1.1, -0.4), "change": tensor(0.4, -0.3)}
    smooth = {
        name: rows.get(name, torch.as_tensor(0.7 * value, dtype=torch.float64) if isinstance(value, float) else value)
        for name, value in fixed.items()
        if name not in NUMBERS
    }
    inputs = tuple(value.clone().requires_grad_() for value in smooth.values())  # type: ignore[attr-defined]

    def call(*changed: Tensor) -> tuple[Tensor, ...]:
        return tuple(x for x in results(function, fixed | dict(zip(smooth, changed, strict=True))) if x.requires_grad)

    assert call(*inputs)
    assert torch.autograd.gradcheck(call, inputs, rtol=1e-4, atol=1e-6)


BATCH = 3, 2
_draw = torch.Generator().manual_seed(3)


def _uniform(*shape: int) -> Tensor:
    return torch.rand(*BATCH, *shape, generator=_draw, dtype=torch.float64)


_rows, _mask, _share = 6 * _uniform(6) - 3, _uniform(6) < 0.7, 0.1 + 0.8 * _uniform()
_mask[..., 0] = True
_spread, _counts, _vectors = (
    _rows.amax(-1) - _rows.amin(-1),
    torch.tensor([[1, 2], [3, 4], [5, 6]]),
    2 * _uniform(6, 3) - 1,
)
BATCHED = {
    "weights": torch.softmax(_rows, -1), "logits": _rows, "change": _rows, "vectors": _vectors, "values": _vectors,
    "count": _counts, "winners": _counts, "keys": 6 + _counts, "dimension": 1 + _counts, "mask": _mask,
    "spread": _spread, "bound": _spread, "margin": _spread, "size": _spread, "largest": 1 + _spread,
    "temperature": 0.1 + _uniform(), "smallest": _share, "largest_log_derivative": 0.1 + _uniform(),
    "radius": 0.3 + _uniform(), "norm_of_vectors": 0.3 + _uniform(), "largest_norm": 0.3 + _uniform(),
    "deviation": 0.3 + _uniform(), "error": _share, "fraction_kept": _share, "apart": _share, "single": _share,
}  # fmt: skip


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("function", [name for name in GOOD if name not in (*ALONE, "entmax_gap")])
def test_batches_are_rows(function: str, masked: bool) -> None:
    """One number, set or mask per row: plain numbers where a row has only one."""
    arguments = {name: BATCHED.get(name, value) for name, value in GOOD[function].items() if name != "mask" or masked}
    if "mask" in arguments and "count" in arguments:
        arguments["count"] = torch.minimum(_counts, _mask.sum(-1))
    if function == "expected_distance_exact":
        arguments["count"] = 2
    if function == "weight_bounds":
        arguments["temperature"] = BATCHED["temperature"].unsqueeze(-1)
    batched = results(function, arguments)
    for at in torch.ones(BATCH).nonzero().tolist():
        row = {
            name: (value[tuple(at)] if value[tuple(at)].ndim else value[tuple(at)].item())
            if isinstance(value, Tensor) and value.shape[:2] == BATCH
            else value
            for name, value in arguments.items()
        }
        for many, alone in zip(batched, results(function, row), strict=True):
            close(many[tuple(at)].double(), alone.double(), atol=1e-15)


def test_all_rows_may_share_vectors() -> None:
    a, x = BATCHED["weights"], _vectors[0, 0]
    close(bounds.distance(a, x, 2)[1, 1], bounds.distance(a[1, 1], x, 2))
