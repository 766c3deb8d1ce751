"""Shapes, layouts, dtypes and extreme values that every normalizer takes."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
from inside import normalizers_row_map as _dispatch
from normalizer_cases import Case, base_cases, every_case, random_logits, random_mask, slow
from row_paths import REFERENCE, Path
from torch import Tensor
from typed import weights

import abbe

SHAPE = (2, 3, 4, 9)


@every_case()
def test_huge_logits_stay_finite(case: Case, path: Path) -> None:
    made = case.make(path.dtype)
    for factor in (1e4, 1e8, 1e20):
        logits = random_logits(*SHAPE, dtype=path.dtype).mul(factor).requires_grad_()
        output = weights(made, logits)
        output.square().sum().backward()
        assert bool(torch.isfinite(output).all())
        assert bool(torch.isfinite(logits.grad).all())
        assert bool((output >= 0).all())
        assert bool((output <= 2).all())
        if case.simplex:
            torch.testing.assert_close(output.sum(-1), torch.ones_like(output[..., 0]), rtol=0, atol=path.tolerance)


@every_case()
def test_equal_logits_get_equal_weights(case: Case, path: Path) -> None:
    if not (case.permutation_equivariant and case.continuous) and case.name != "self-adjusted":
        pytest.skip("ties are broken by place")
    levels = torch.tensor([-300.0, -1.0, 0.0, 0.25, 300.0], dtype=path.dtype)
    output = weights(case.make(path.dtype), levels.view(5, 1, 1, 1).expand(5, 3, 2, 7))
    torch.testing.assert_close(output, output[..., :1].expand_as(output), rtol=path.tolerance, atol=0)
    if case.simplex:
        torch.testing.assert_close(output, torch.full_like(output, 1 / 7), rtol=path.tolerance, atol=0)


@every_case()
@pytest.mark.parametrize("level", [0.0, -2.0, slow(3.0)])
def test_flat_rows_have_finite_gradients(case: Case, level: float, path: Path) -> None:
    """Kinks, ties and the point of zero deviation: some gradient, never NaN, first and second."""
    made = case.make(path.dtype)
    logits = torch.full((1, 3, 2, 7), level, dtype=path.dtype, requires_grad=True)
    values = [logits, *made.parameters()]
    upstream = random_logits(1, 3, 2, 7, seed=1, dtype=path.dtype)
    first = torch.autograd.grad(made(logits), values, upstream, create_graph=True)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in first)
    total = sum(gradient.square().sum() for gradient in first)
    if total.requires_grad:
        second = torch.autograd.grad(total, values, allow_unused=True)
        assert all(gradient is None or bool(torch.isfinite(gradient).all()) for gradient in second)
    assert bool(torch.isfinite(made.jacobian(logits.detach())).all())


@every_case()
def test_one_key(case: Case, path: Path) -> None:
    made = case.make(path.dtype)
    logits = torch.tensor([-700.0, -3.0, 0.0, 0.5, 700.0], dtype=path.dtype).view(1, 1, 5, 1).repeat(1, 3, 1, 1)
    output = weights(made, logits.requires_grad_())
    if case.simplex:
        assert bool((output == 1).all())
    assert bool(torch.isfinite(output).all())
    output.sum().backward()
    assert bool(torch.isfinite(logits.grad).all())


@base_cases()
@pytest.mark.parametrize("shape", [(0, 3, 4, 9), (2, 3, 0, 1)])
def test_empty_batches(case: Case, shape: tuple[int, ...], path: Path) -> None:
    made = case.make(path.dtype)
    logits = torch.empty(shape, dtype=path.dtype, requires_grad=True)
    output = weights(made, logits, torch.ones(shape[-1], dtype=torch.bool))
    assert output.shape == shape
    output.sum().backward()
    assert logits.grad.shape == shape
    assert all(bool((raw.grad == 0).all()) for raw in made.parameters() if raw.grad is not None)
    assert made.jacobian(logits.detach()).shape == (*shape, shape[-1])


@base_cases()
def test_one_dimension(case: Case, path: Path) -> None:
    if case.heads > 1:
        pytest.skip("needs (heads, queries, keys)")
    made, logits = case.make(path.dtype), random_logits(9, dtype=path.dtype)
    torch.testing.assert_close(weights(made, logits), weights(made, logits[None])[0], rtol=0, atol=path.tolerance)
    assert made.jacobian(logits).shape == (9, 9)


@base_cases()
def test_layout_does_not_matter(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    plain = weights(made, logits)
    transposed = logits.transpose(0, -1).contiguous().transpose(0, -1)
    strided = torch.stack([logits, -logits], -1).flatten(-2)[..., ::2]
    expanded = logits[:1, :, :1].expand(SHAPE)
    assert not transposed.is_contiguous()
    assert not strided.is_contiguous()
    torch.testing.assert_close(weights(made, transposed), plain, rtol=0, atol=path.tolerance)
    torch.testing.assert_close(weights(made, strided), plain, rtol=0, atol=path.tolerance)
    torch.testing.assert_close(weights(made, expanded), plain[:1, :, :1].expand(SHAPE), rtol=0, atol=path.tolerance)


@every_case()
def test_gradients_of_views(case: Case, path: Path) -> None:
    """A transposed and expanded leaf, and the expanded gradient that sum() sends back."""
    made, leaf = case.make(path.dtype), random_logits(9, 3, dtype=path.dtype).requires_grad_()
    view = leaf.t()[None, :, None].expand(2, 3, 4, 9)
    copied = leaf.detach().clone().requires_grad_()
    (got,) = torch.autograd.grad((made(view) * torch.arange(9.0)).sum(), leaf)
    dense = copied.t()[None, :, None].expand(2, 3, 4, 9).clone(memory_format=torch.contiguous_format)
    (want,) = torch.autograd.grad((made(dense) * torch.arange(9.0)).sum(), copied)
    torch.testing.assert_close(got, want, rtol=16 * path.tolerance, atol=16 * path.tolerance)


@base_cases()
def test_inputs_are_left_alone(case: Case, path: Path) -> None:
    made, logits, mask = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype), random_mask(*SHAPE)
    before = logits.clone(), mask.clone()
    made(logits, mask)
    made.jacobian(logits, mask)
    assert torch.equal(logits, before[0])
    assert torch.equal(mask, before[1])


@every_case()
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_nan_and_infinity_propagate(case: Case, junk: float, path: Path) -> None:
    """Never hidden, in its own row only; the whole row where keys compete. The sigmoid of +inf is 1."""
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    spoiled = logits.clone()
    spoiled[0, 0, 0, 4] = junk
    output, clean = weights(made, spoiled).detach().clone(), weights(made, logits).detach().clone()
    if case.row_coupled:
        assert bool(output[0, 0, 0].isnan().all()), output[0, 0, 0]
    elif junk != junk:
        assert bool(output[0, 0, 0, 4].isnan())
    output[0, 0, 0] = clean[0, 0, 0] = 0
    torch.testing.assert_close(output, clean, rtol=0, atol=path.tolerance)
    with pytest.raises(abbe.AbbeError, match=r"logits.*NaN or \+inf"):
        made(spoiled, check=True)
    made(spoiled.masked_fill(torch.arange(9) == 4, -torch.inf), check=True)


def spoiled_logits(junk: float, path: Path) -> torch.Tensor:
    """Logits with one bad key in the row [0, 0, 0]; two of its other keys are masked by HIDDEN."""
    logits = random_logits(*SHAPE, dtype=path.dtype)
    logits[0, 0, 0, 4] = junk
    return logits


HIDDEN = torch.isin(torch.arange(9), torch.tensor([2, 7]))  # of the keys of every row
UPSTREAM = torch.arange(1.0, 10.0)


@every_case("row_coupled")
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_nan_reaches_the_gradient(case: Case, junk: float, path: Path) -> None:
    """The row's gradient is NaN throughout, so that a broken training run shows; other rows and heads keep theirs."""
    made, logits = case.make(path.dtype), spoiled_logits(junk, path).requires_grad_()
    clean = random_logits(*SHAPE, dtype=path.dtype).requires_grad_()
    got, *learned = torch.autograd.grad((made(logits, ~HIDDEN) * UPSTREAM).sum(), [logits, *made.parameters()])
    want, *_ = torch.autograd.grad((made(clean, ~HIDDEN) * UPSTREAM).sum(), clean)
    assert got[0, 0, 0].isnan().tolist() == (~HIDDEN).tolist(), got[0, 0, 0]
    assert bool((got[0, 0, 0, HIDDEN] == 0).all())
    got[0, 0, 0] = want[0, 0, 0] = 0
    torch.testing.assert_close(got, want, rtol=0, atol=16 * path.tolerance * max(1.0, float(want.abs().max())))
    for gradient in learned:  # the first of three heads is the spoiled one
        assert gradient.isnan().flatten().tolist() == [True, False, False][: len(gradient)]


@every_case("row_coupled")
def test_nan_reaches_the_gradient_of_a_transform(case: Case) -> None:
    """torch.func takes the reference: NaN in every derivative of the spoiled row, none elsewhere."""
    made, logits = case.make(), spoiled_logits(torch.nan, REFERENCE)
    gradients = torch.func.grad(lambda x: (made(x, ~HIDDEN) * UPSTREAM).sum())(logits)
    assert gradients[0, 0, 0].isnan().tolist() == (~HIDDEN).tolist()
    gradients[0, 0, 0] = 0
    assert bool(torch.isfinite(gradients).all())


@every_case("not row_coupled")
def test_nan_reaches_the_gradient_of_its_key(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), spoiled_logits(torch.nan, path).requires_grad_()
    (got,) = torch.autograd.grad((made(logits, ~HIDDEN) * UPSTREAM).sum(), logits)
    assert bool(got[0, 0, 0, 4].isnan())
    assert bool(torch.isfinite(got.flatten()[torch.arange(got.numel()) != 4]).all())


@every_case()
def test_nan_reaches_the_closed_form_jacobian(case: Case) -> None:
    """Row i holds the derivatives of weight i, so it is NaN where that weight is; other rows of logits keep theirs."""
    made, logits = case.make(), spoiled_logits(torch.nan, REFERENCE)
    spoiled, clean = made.jacobian(logits), made.jacobian(random_logits(*SHAPE))
    assert torch.equal(spoiled[0, 0, 0].isnan().any(-1), made(logits)[0, 0, 0].isnan())
    spoiled[0, 0, 0] = clean[0, 0, 0] = 0
    torch.testing.assert_close(spoiled, clean, rtol=0, atol=1e-11)


@base_cases()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_in_is_dtype_out(case: Case, dtype: torch.dtype) -> None:
    made = case.make(torch.float32)
    logits = random_logits(*SHAPE, dtype=dtype).requires_grad_()
    output = weights(made, logits)
    assert output.dtype == dtype
    output.sum().backward()
    assert logits.grad.dtype == dtype
    assert all(raw.grad is None or raw.grad.dtype == torch.float32 for raw in made.parameters())
    assert made.jacobian(logits.detach()).dtype == dtype


@base_cases()
def test_inference_mode_and_copies(case: Case, path: Path) -> None:
    made, logits = case.make(path.dtype), random_logits(*SHAPE, dtype=path.dtype)
    want = made(logits)
    with torch.inference_mode():
        assert torch.equal(made(logits), want)
    assert torch.equal(copy.deepcopy(made)(logits), want)
    assert torch.equal(pickle.loads(pickle.dumps(made))(logits), want)
    again = abbe.normalizer(str(made)).to(path.dtype)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(logits), want)


def extreme_rows(dtype: torch.dtype) -> Tensor:
    """All rows of four from the largest numbers, whose differences and products overflow, small ones and no key."""
    most = torch.finfo(dtype).max
    values = (most, -most, most / 2, -most / 3, 0.0, 0.7, -torch.inf)
    return torch.tensor(list(product(values, repeat=4)), dtype=dtype).expand(3, -1, -1).contiguous()


def all_of(made: abbe.Normalizer, rows: Tensor) -> dict[str, Tensor]:
    """Weights, gradients and Jacobian, as float64."""
    logits = rows.clone().requires_grad_()
    output = made(logits)
    upstream = torch.tensor([0.3, -0.7, 1.1, 0.2], dtype=rows.dtype).expand_as(rows)
    learned = dict(made.named_parameters())
    grads = torch.autograd.grad(output, [logits, *learned.values()], upstream)
    parts = dict(zip(("weights", "gradient", *learned), (output.detach(), *grads), strict=True))
    return {name: part.double() for name, part in (parts | {"jacobian": made.jacobian(rows).detach()}).items()}


@every_case()
@pytest.mark.parametrize("kind", ["kernel", "float32", "float64"])
def test_logits_as_large_as_numbers_get(case: Case, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64, which holds every range of float32. float64 itself is held against rows whose large logits are
    2^900 times smaller: their gaps are still so large that nothing but their order and their ratios counts."""
    rows = extreme_rows(torch.float64 if kind == "float64" else torch.float32)
    smaller = torch.where(rows.abs() > 1e200, rows * 2.0**-900, rows) if kind == "float64" else rows.double()
    want = all_of(case.make(), smaller)
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1 if kind == "kernel" else 1 << 62)
    got = all_of(case.make(rows.dtype), rows)
    for name, exact in want.items():
        # a parameter's gradient is a sum over thousands of rows
        allowed = (1e-11 if kind == "float64" else 4e-6) * (1 if exact.shape[:2] == rows.shape[:2] else 100)
        off = (got[name] - exact).abs() / exact.abs().clamp(min=1)
        assert float(off.max()) <= allowed, f"{name}: off by {float(off.max()):.1e}"


@pytest.mark.parametrize(
    "spec", ["asentmax:alpha=2", "asentmax:alpha=1.5", "asentmax:alpha=1.3", "logn:trained=16,slope=2"]
)
def test_a_scale_of_zero_gives_equal_weights(spec: str, path: Path) -> None:
    """Also to a key whose gap to the top overflows, and none to an absent key."""
    made = abbe.normalizer(spec if spec.startswith("logn") else f"{spec},delta=0,beta=0").to(path.dtype)
    most = torch.finfo(path.dtype).max
    for row, equal in (([1.0, -1.0, -torch.inf], [0.5, 0.5, 0.0]), ([most, -most], [0.5, 0.5])):
        assert weights(made, torch.tensor(row, dtype=path.dtype)).tolist() == pytest.approx(equal, rel=path.tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_softmax_of_a_range_that_overflows(dtype: torch.dtype, path: Path) -> None:
    """Also if gamma is so large that the deviation divides: (l - mean)/deviation does not depend on the size of l."""
    most = torch.finfo(dtype).max
    row = torch.tensor([most, -most, 0.0, 1.0], dtype=dtype)
    assert weights(abbe.normalizer("norm-softmax"), row).tolist() == [1.0, 0.0, 0.0, 0.0]
    unlimited = abbe.normalizer("norm-softmax", gamma=most)
    want = weights(unlimited, torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=dtype))
    torch.testing.assert_close(weights(unlimited, row), want, rtol=0, atol=4e-6 if dtype == torch.float32 else 1e-12)


def test_a_scaled_product_beyond_the_largest_number_counts_as_that_number(path: Path) -> None:
    most = torch.finfo(path.dtype).max
    row = torch.tensor([most, 0.5, -most], dtype=path.dtype)
    scaled = weights(abbe.normalizer("scaled:of=sigmoid:bias=0,t=2").to(path.dtype), row)
    torch.testing.assert_close(scaled, torch.sigmoid(row * 7.38905609893065), rtol=0, atol=path.tolerance)
    assert weights(abbe.normalizer("scaled:of=relu,t=2").to(path.dtype), row).tolist() == pytest.approx([1, 0, 0])
