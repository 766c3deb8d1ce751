"""A masked key is the same as an absent key, forward and backward; a row without keys gives zeros, never NaN."""

from __future__ import annotations

import torch
from normalizer_cases import Case, base_cases, every_case, generic_logits, random_logits, random_mask
from row_paths import Path
from torch import Tensor
from typed import jacobian, weights

import abbe

SHAPE = (2, 3, 4, 11)
VISIBLE = 6


def same_count_mask(*shape: int, visible: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A mask with other places in every row but the same number of keys, and these places in order."""
    draw = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    places = draw.argsort(-1)[..., :visible].sort(-1).values
    return torch.zeros(shape, dtype=torch.bool).scatter(-1, places, True), places


@every_case()
def test_masking_is_removing(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    mask, places = same_count_mask(*SHAPE, visible=VISIBLE)
    masked = weights(made, logits, mask)
    removed = weights(made, logits.gather(-1, places))
    assert bool((masked[~mask] == 0).all())
    torch.testing.assert_close(masked.gather(-1, places), removed, rtol=0, atol=path.tolerance)


@every_case()
def test_masking_is_removing_for_gradients(case: Case, path: Path) -> None:
    made = case.make(path.dtype)
    mask, places = same_count_mask(*SHAPE, visible=VISIBLE, seed=1)
    inner = generic_logits(case, *SHAPE[:-1], VISIBLE).to(path.dtype).requires_grad_()
    outer = torch.full(SHAPE, 7.0, dtype=path.dtype).scatter(-1, places, inner.detach()).requires_grad_()
    upstream = random_logits(*SHAPE, seed=3, scale=1.0, dtype=path.dtype)
    values = list(made.parameters())
    got = torch.autograd.grad(weights(made, outer, mask), [outer, *values], upstream)
    want = torch.autograd.grad(weights(made, inner), [inner, *values], upstream.gather(-1, places))
    assert bool((got[0][~mask] == 0).all())
    size = max(1.0, float(want[0].abs().max()))
    torch.testing.assert_close(got[0].gather(-1, places), want[0], rtol=0, atol=4 * size * path.tolerance)
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=16 * path.tolerance, atol=16 * path.tolerance)


@every_case()
def test_masking_is_removing_for_the_jacobian(case: Case) -> None:
    made, logits = case.make(), random_logits(*SHAPE)
    keep = torch.tensor([0, 2, 3, 7, 8, 10])
    mask = torch.zeros(SHAPE[-1], dtype=torch.bool).scatter(0, keep, True)
    whole = jacobian(made, logits, mask)
    torch.testing.assert_close(
        whole[..., keep, :][..., keep], jacobian(made, logits[..., keep]), rtol=1e-11, atol=1e-11
    )
    assert bool((whole[..., ~mask, :] == 0).all())
    assert bool((whole[..., ~mask] == 0).all())


@every_case()
def test_minus_infinity_is_masked(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    mask = random_mask(*SHAPE)
    assert torch.equal(weights(made, logits.masked_fill(~mask, -torch.inf)), weights(made, logits, mask))
    hidden = logits.masked_fill(~mask, -torch.inf).requires_grad_()
    made(hidden).square().sum().backward()
    assert bool(torch.isfinite(hidden.grad).all())
    assert bool((hidden.grad[~mask] == 0).all())


@every_case()
def test_masked_places_may_hold_anything(case: Case, path: Path) -> None:
    made, logits, mask = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype), random_mask(*SHAPE)
    junk = torch.tensor([torch.nan, torch.inf, 3e38, -3e38], dtype=path.dtype)[torch.arange(SHAPE[-1]) % 4]
    spoiled = torch.where(mask, logits, junk).requires_grad_()
    clean = logits.clone().requires_grad_()
    assert torch.equal(made(spoiled, mask, check=True), made(clean, mask))
    for tensor in (spoiled, clean):
        made(tensor, mask).square().sum().backward()
    assert torch.equal(spoiled.grad, clean.grad)
    assert torch.equal(made.jacobian(spoiled, mask), made.jacobian(clean, mask))


@every_case()
def test_row_without_keys_gives_zeros_and_zero_gradients(case: Case, path: Path) -> None:
    made = case.make(path.dtype)
    logits = random_logits(*SHAPE, dtype=path.dtype).requires_grad_()
    nothing = torch.zeros(SHAPE, dtype=torch.bool)
    output = weights(made, logits, nothing)
    assert bool((output == 0).all())
    values = list(made.parameters())
    first = torch.autograd.grad(output.sum() + output.square().sum(), [logits, *values], create_graph=True)
    assert all(bool((gradient == 0).all()) for gradient in first)
    if any(gradient.requires_grad for gradient in first):
        total = sum(gradient.square().sum() + gradient.sum() for gradient in first)
        for second in torch.autograd.grad(total, [logits, *values], allow_unused=True):
            assert second is None or bool((second == 0).all())
    assert bool((jacobian(made, logits.detach(), nothing) == 0).all())


@every_case()
def test_row_without_keys_leaves_the_other_rows_alone(case: Case, path: Path) -> None:
    made = case.make(path.dtype)
    logits = random_logits(*SHAPE, seed=2, dtype=path.dtype)
    mask = random_mask(*SHAPE, seed=2)
    mask[:, :, 1] = False
    others = torch.tensor([0, 2, 3])
    whole, part = (x.requires_grad_() for x in (logits.clone(), logits[:, :, others].clone()))
    upstream = random_logits(*SHAPE, seed=3, scale=1.0, dtype=path.dtype)
    values = list(made.parameters())
    got = torch.autograd.grad(made(whole, mask), [whole, *values], upstream)
    want = torch.autograd.grad(made(part, mask[:, :, others]), [part, *values], upstream[:, :, others])
    assert bool((got[0][:, :, 1] == 0).all())
    assert torch.equal(got[0][:, :, others], want[0])
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=4 * path.tolerance, atol=4 * path.tolerance)


@base_cases()
def test_masks_broadcast(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    for shape in ((), (1,), (11,), (4, 1), (4, 11), (3, 1, 11), (2, 1, 1, 1), (1, 3, 4, 1)):
        mask = torch.arange(torch.Size(shape).numel()).reshape(shape) % 3 != 1
        assert torch.equal(weights(made, logits, mask), weights(made, logits, mask.expand(SHAPE).clone())), shape


@every_case()
def test_n_is_the_count_of_visible_keys(case: Case) -> None:
    """Padding that is masked away must not enter any formula, however long it is."""
    made, logits = case.make(), random_logits(1, 3, 2, 5)
    for padding in (1, 3, 200):
        padded = torch.nn.functional.pad(logits, (0, padding), value=3.0)
        mask = torch.arange(5 + padding) < 5
        torch.testing.assert_close(weights(made, padded, mask)[..., :5], weights(made, logits), rtol=1e-12, atol=1e-14)


def test_causal_mask_gives_each_row_its_own_n() -> None:
    logits = random_logits(6, 6)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    for spec in ("ssmax:s=0.7", "logn:trained=4", "elastic:tau=-0.5", "sigmoid", "asentmax", "norm-softmax"):
        made = abbe.normalizer(spec)
        output = weights(made, logits, causal)
        for row in range(6):
            torch.testing.assert_close(output[row, : row + 1], made(logits[row, : row + 1]), rtol=1e-12, atol=1e-14)
