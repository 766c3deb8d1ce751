"""torch.compile(fullgraph=True) forward and backward, and the custom operators that carry the kernels."""

from __future__ import annotations

import pytest
import torch
from inside import normalizers_row_map as _row_map
from normalizer_cases import CASES, CORE, Case, every_case, random_logits, random_mask, slow
from torch import Tensor

import abbe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def outcome(call: object, made: abbe.Normalizer, logits: Tensor, mask: Tensor | None) -> list[Tensor]:
    leaf = logits.clone().requires_grad_()
    output = call(leaf, mask)  # type: ignore[operator]
    upstream = random_logits(*logits.shape, seed=3, scale=1.0, dtype=logits.dtype)
    return [output, *torch.autograd.grad(output, [leaf, *made.parameters()], upstream)]


def assert_same_compiled(made: abbe.Normalizer, logits: Tensor, mask: Tensor | None, backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend=backend)
    got, want = outcome(compiled, made, logits, mask), outcome(made, made, logits, mask)
    for mine, plain in zip(got, want, strict=True):
        size = max(1.0, float(plain.detach().abs().max()))
        torch.testing.assert_close(mine, plain, rtol=0, atol=4e-6 * size)


def unrolls_newton(case: Case) -> bool:
    """General entmax by the reference, and normmax: their graphs are long, so only one case of each is compiled."""
    made = [part for part in case.make().modules() if isinstance(part, abbe.Normalizer)]
    return case.spec not in SLOW_ONES and any(
        part.name == "normmax"
        or (part.name in ("entmax", "asentmax") and (part.alpha not in (1.5, 2) or "alpha" in part.learned))
        for part in made
    )


SLOW_ONES = ("entmax:alpha=1.3,learn=true", "normmax:alpha=2")


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "case", [case if str(case) in CORE else slow(case) for case in CASES if not unrolls_newton(case)], ids=str
)
def test_whole_graph_of_short_rows(case: Case) -> None:
    made = case.make(torch.float32)
    assert_same_compiled(made, random_logits(2, 3, 2, 9, dtype=torch.float32), random_mask(2, 3, 2, 9), "aot_eager")


@pytest.mark.quick(6)
@every_case()
def test_whole_graph_of_long_rows(case: Case, fused: None) -> None:
    """The kernels stay in the graph as calls."""
    made = case.make(torch.float32)
    assert_same_compiled(made, random_logits(2, 3, 2, 65, dtype=torch.float32), random_mask(2, 3, 2, 65), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        ("entmax:alpha=1.5", 8),
        ("topk:k=3", 8),
        ("stick-breaking", 8),
        ("softmax", 600),
        ("entmax:alpha=1.5", 600),
        ("entmax:alpha=1.3,learn=true", 600),
        ("topk:k=3", 600),
        ("stick-breaking", 600),
    ],
)
def test_whole_graph_by_inductor(spec: str, rows: int) -> None:
    """8 rows stay below the size from which the kernels are used, 600 are above."""
    logits = random_logits(rows, 128, dtype=torch.float32)
    assert _row_map.fused(logits) == (rows == 600)
    assert_same_compiled(abbe.normalizer(spec), logits, random_mask(rows, 128), "inductor")


@pytest.mark.parametrize("spec", ["ssmax:learn=true", slow("sparsemax")])
def test_dynamic_shapes(spec: str) -> None:
    """One compilation serves sizes on both sides of the limit (a guard may compile once more)."""
    torch._dynamo.reset()
    made = abbe.normalizer(spec)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows, keys in ((4, 16), (6, 33), (700, 100), (800, 129)):
        logits = random_logits(rows, keys, dtype=torch.float32)
        for mine, plain in zip(outcome(compiled, made, logits, None), outcome(made, made, logits, None), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["reference", "kernel"])
@pytest.mark.parametrize("spec", ["sparsemax", "elastic:learn=true", slow("topk:k=3")])
def test_nan_reaches_the_gradient_of_a_compiled_call(spec: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    made, logits = abbe.normalizer(spec).to(dtype), random_logits(2, 9, dtype=dtype)
    logits[0, 4] = torch.nan
    got = outcome(torch.compile(made, fullgraph=True, backend="aot_eager"), made, logits, None)
    for of_rows in got[:2]:
        assert bool(of_rows[0].isnan().all())
        assert bool(of_rows[1].isfinite().all())
    assert all(bool(gradient.isnan().all()) for gradient in got[2:])


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", [name for name, which in _row_map.MAPS.items() if which.forward])
def test_custom_operators_keep_torchs_rules(name: str) -> None:
    """opcheck: schema, fake kernels, autograd registration, aot dispatch."""
    count = {"softmax": 1, "sparsemax": 1, "entmax15": 1}.get(name, 2)
    rows = (random_logits(4, 17, dtype=torch.float32), torch.full((count,), 0.7), name)
    torch.library.opcheck(torch.ops.abbe.row_weights.default, rows)
    weights = torch.ops.abbe.row_weights(*rows)
    learns = name in ("softmax", "sparsemax", "entmax15", "entmax", "sink", "elastic")
    for with_params in (True, False) if learns else (False,):
        torch.library.opcheck(
            torch.ops.abbe.row_gradients.default, (torch.ones(4, 17), rows[0], weights, rows[1], name, with_params)
        )


def test_custom_operators_with_gradients() -> None:
    params = torch.tensor([1.0, 0.3], requires_grad=True)
    logits = random_logits(4, 17, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(torch.ops.abbe.row_weights.default, (logits, params, "entmax"))
    heads = torch.tensor([1.0, 0.3]).expand(3, 1, 2).clone().requires_grad_()
    rows = random_logits(2, 3, 4, 17, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(torch.ops.abbe.row_weights.default, (rows, heads, "entmax"))


def test_second_derivatives_of_the_operators() -> None:
    """The operators as torch.compile keeps them, differentiated twice."""
    logits, params = random_logits(4, 17, dtype=torch.float32), torch.tensor([1.0, 0.3])

    def second(dtype: torch.dtype) -> list[Tensor]:
        x, p = (t.to(dtype).requires_grad_() for t in (logits.clone(), params.clone()))
        if dtype == torch.float32:
            weights = torch.ops.abbe.row_weights(x, p, "entmax")
        else:
            weights = _row_map.MAPS["entmax"].reference(x, p)
        first = torch.autograd.grad(weights.square().sum(), [x, p], create_graph=True)
        return list(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), [x, p]))

    for mine, exact in zip(second(torch.float32), second(torch.float64), strict=True):
        size = max(1.0, float(exact.abs().max()))
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=1e-5 * size)
