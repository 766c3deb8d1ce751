"""First and second derivatives: autograd, the closed-form Jacobian, finite differences and torch.func agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from inside import normalizers_row_map as _row_map
from normalizer_cases import CORE, Case, all_cases, base_cases, every_case, generic_logits, random_logits, random_mask
from tiers import ALL
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap
from typed import jacobian

import abbe

SHAPE = (3, 2, 6)
# The quick tier holds second derivatives, and first ones of cases outside of CORE, against finite differences along
# random directions, `make test-all` along all.
FAST = not ALL


def as_function(made: abbe.Normalizer, mask: Tensor | None = None) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """weights(logits, *learned) as a pure function, and the learned values."""
    names = [name for name, _ in made.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in made.parameters()]

    def call(logits: Tensor, *given: Tensor) -> Tensor:
        return functional_call(made, dict(zip(names, given, strict=True)), (logits,), {"mask": mask})

    return call, values


@all_cases()
def test_gradcheck(case: Case) -> None:
    call, values = as_function(case.make())
    logits = generic_logits(case, *SHAPE).requires_grad_()
    assert torch.autograd.gradcheck(call, (logits, *values), atol=1e-7, fast_mode=FAST and str(case) not in CORE)


@every_case()
def test_gradgradcheck(case: Case) -> None:
    call, values = as_function(case.make())
    logits = generic_logits(case, *SHAPE, seed=1).requires_grad_()
    upstream = random_logits(*SHAPE, seed=2, scale=1.0).requires_grad_()
    assert torch.autograd.gradgradcheck(call, (logits, *values), (upstream,), atol=1e-6, fast_mode=FAST)


@base_cases()
def test_gradcheck_with_masked_keys_and_rows(case: Case) -> None:
    """Masked keys, and one row without any: gradients are right there too, first and second."""
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[..., 3] = False
    mask[0, 1] = False
    call, values = as_function(case.make(), mask)
    logits = generic_logits(case, *SHAPE[:-1], 5, seed=3)
    logits = torch.cat([logits[..., :3], torch.ones_like(logits[..., :1]), logits[..., 3:]], -1).requires_grad_()
    assert torch.autograd.gradcheck(call, (logits, *values), atol=1e-7)
    assert torch.autograd.gradgradcheck(call, (logits, *values), atol=1e-6, fast_mode=FAST)


def finite_differences(call: Callable[[Tensor], Tensor], logits: Tensor, step: float) -> Tensor:
    """Central differences, column by column."""
    columns = []
    for key in range(logits.shape[-1]):
        move = torch.zeros_like(logits)
        move[..., key] = step
        columns.append((call(logits + move) - call(logits - move)) / (2 * step))
    return torch.stack(columns, -1)


@all_cases()
def test_closed_form_jacobian_is_autograd_is_finite_differences(case: Case) -> None:
    """P7, for every normalizer. Finite differences of step h err by about h^2 + 1e-16/h."""
    made, logits = case.make(), generic_logits(case, 1, *SHAPE, seed=4)
    closed = jacobian(made, logits)
    with torch.no_grad():
        numeric = finite_differences(made, logits, 1e-5)
    row = logits.clone().requires_grad_()
    weights = made(row)
    columns = [torch.autograd.grad(weights[..., i].sum(), row, retain_graph=True)[0] for i in range(SHAPE[-1])]
    size = max(1.0, float(closed.detach().abs().max()))
    torch.testing.assert_close(closed, torch.stack(columns, -2), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(closed, numeric, rtol=0, atol=2e-8 * size)


@every_case()
def test_torch_func_transforms(case: Case) -> None:
    made, logits = case.make(), generic_logits(case, *SHAPE, seed=5)
    closed = jacobian(made, logits)
    eye = torch.eye(SHAPE[0] * SHAPE[1], dtype=torch.float64).view(*SHAPE[:2], *SHAPE[:2])
    full = closed[..., None, None, :] * eye[:, :, None, :, :, None]
    torch.testing.assert_close(jacrev(made)(logits), full, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(jacfwd(made)(logits), full, rtol=1e-9, atol=1e-11)
    batch = torch.stack([logits, logits.flip(-1), 2 * logits])
    torch.testing.assert_close(vmap(made)(batch), torch.stack([made(x) for x in batch]), rtol=1e-11, atol=1e-13)
    tangent = random_logits(*SHAPE, seed=6)
    value, moved = jvp(made, (logits,), (tangent,))
    torch.testing.assert_close(value, made(logits), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(moved, (closed @ tangent[..., None])[..., 0], rtol=1e-9, atol=1e-11)
    first = jacobian(made, batch[0])
    each = vmap(jacrev(made))(batch)
    torch.testing.assert_close(torch.einsum("abcabk->abck", each[0]), first, rtol=1e-9, atol=1e-11)


@every_case()
def test_torch_func_with_masks_and_float32(case: Case, fused: None) -> None:
    """Inside a transform also those logits that a kernel would take go through the reference."""
    made = case.make(torch.float32)
    logits, mask = random_logits(4, *SHAPE, dtype=torch.float32), random_mask(4, *SHAPE)
    mask[0, 0, 0] = False
    mapped = vmap(lambda x, m: made(x, mask=m))(logits, mask)
    torch.testing.assert_close(mapped, made(logits, mask), rtol=0, atol=1e-6)
    derivative = vmap(jacrev(lambda x, m: made(x, mask=m)))(logits, mask)
    assert bool(torch.isfinite(derivative).all())


@every_case("learns")
def test_gradients_to_learned_values_by_torch_func(case: Case) -> None:
    made = case.make()
    call, values = as_function(made)
    logits, upstream = generic_logits(case, *SHAPE), random_logits(*SHAPE, seed=7)
    by_func = grad(lambda given: (call(logits, *given) * upstream).sum())(tuple(values))
    by_autograd = torch.autograd.grad((call(logits, *values) * upstream).sum(), values)
    for one, other in zip(by_func, by_autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        assert float(other.detach().abs().max()) > 1e-8, "nothing to learn from"


@pytest.mark.parametrize("excess", [1e-9, 1e-6, 1e-3, 0.02, 0.3, 0.5, 0.77, 0.98, 1 - 1e-6])
def test_entmax_converges_inside_transforms(excess: float) -> None:
    """There the number of Newton steps is fixed: it must do for any row."""
    rows = torch.stack([random_logits(2000, seed=1, scale=s) for s in (1e-6, 1e-2, 0.3, 1, 5, 100)])
    params = torch.tensor([1.0, excess], dtype=torch.float64)
    reference = _row_map.MAPS["entmax"].reference
    plain, mapped = reference(rows, params), vmap(lambda x: reference(x, params))(rows)
    torch.testing.assert_close(mapped, plain, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(plain.sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-10)


@every_case()
def test_third_derivatives_exist(case: Case) -> None:
    """By nested jacrev, against finite differences of the second."""
    made, row = case.make(), generic_logits(case, 3, 1, 4, seed=8, reach=2e-3)

    def curvature(x: Tensor) -> Tensor:
        return jacrev(jacrev(lambda y: made(y).square().sum()))(x)

    direction = random_logits(3, 1, 4, seed=9, scale=1.0)
    third = jvp(curvature, (row,), (direction,))[1]
    step = 1e-4
    numeric = (curvature(row + step * direction) - curvature(row - step * direction)) / (2 * step)
    size = max(1.0, float(numeric.detach().abs().max()))
    torch.testing.assert_close(third, numeric, rtol=0, atol=3e-5 * size)


@every_case()
def test_closed_form_at_a_row_of_zeros(case: Case) -> None:
    """Where a deviation or a width is 0, autograd and the closed form leave out the same terms."""
    made, zeros = case.make(), torch.zeros(3, 1, 5, dtype=torch.float64)
    if case.name in ("relu", "softpick", "clipped", "elastic"):
        pytest.skip("0 is a kink")
    slopes = torch.func.vmap(torch.func.jacrev(made), randomness="error")(zeros[None])[0]
    exact = torch.stack([slopes[head, 0, :, head, 0] for head in range(3)])
    torch.testing.assert_close(made.jacobian(zeros)[:, 0], exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("spec", ["sparsemax", "entmax:alpha=1.3", "topk:k=3", "hybrid:a=softmax,b=sparsemax,mix=0.25"])
def test_forward_mode_of_what_the_kernels_would_take(spec: str, fused: None) -> None:
    """No kernel carries a tangent: a dual tensor goes to the reference."""
    made = abbe.normalizer(spec)
    logits, tangent = random_logits(4, 17, dtype=torch.float32), random_logits(4, 17, seed=1, dtype=torch.float32)
    with forward_ad.dual_level():
        tangents = forward_ad.unpack_dual(made(forward_ad.make_dual(logits, tangent))).tangent
    assert tangents is not None
    exact = (made.jacobian(logits.double()) @ tangent.double().unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(tangents.double(), exact, rtol=0, atol=1e-5)
