"""The fused float32 kernels against the float64 reference on rows that break naive kernels.

Tolerances. A weight is at most 1 and comes from a gap to the top (one rounding), an exponential or a power (2 ulp)
and a normalising sum: 8 eps absolute. Gradients cancel (g_j - sum w g), so their error is measured against the
same reference in float32, which cancels alike: at most three times its error on the same kind of rows plus 8 eps
of the upstream gradient, times the exact gradient where that is above 1.
"""

from __future__ import annotations

import pytest
import torch
from adversarial_rows import adversarial_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import normalizers_row_map as _row_map
from normalizer_cases import CASES, CORE, Case, every_case, random_logits, slow
from tiers import examples
from torch import Tensor

import abbe

EPS = torch.finfo(torch.float32).eps
# Shorter rows are drawn in the quick tier: test_kernel_on_drawn_rows.
LENGTHS = (64, 65, 1000, *map(slow, (1, 2, 7, 63, 127, 128, 129, 512, 4096)))
SPARSE_LENGTHS = (1, 64, 129, slow(7), slow(1000))


def in_float64(made: abbe.Normalizer) -> abbe.Normalizer:
    again = abbe.normalizer(str(made)).double()
    again.load_state_dict(made.state_dict())
    return again


def nudged(made: abbe.Normalizer, keys: int) -> list[abbe.Normalizer]:
    """A selection whose cut lies a little to either side: rows on which they differ have no answer in float32.

    A little is 2e-6 for an exponential, and for a mass the rounding of a sum over the keys in 32 partial sums.
    """
    by = {"topp": "p", "threshold": "rel"}.get(made.name)
    if by is None:
        return []
    off = 2e-6 + (keys / 32 * EPS if by == "p" else 0)
    return [abbe.normalizer(made.name, **{by: getattr(made, by) * factor}).double() for factor in (1 - off, 1 + off)]


def clear_rows(made: abbe.Normalizer, rows: Tensor) -> Tensor:
    """Rows whose selected set, or side of a kink, does not hang on one rounding."""
    clear = torch.ones(rows.shape[:-1], dtype=torch.bool)
    for other in nudged(made, rows.shape[-1]):
        clear &= ((other(rows.double()) > 0) == (in_float64(made)(rows.double()) > 0)).all(-1)
    if made.name == "norm-softmax":  # the kink where the deviation is gamma
        shown = rows.double().masked_fill(rows.isinf(), torch.nan)
        deviation = (shown - shown.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt()
        clear &= ~((deviation / made.gamma - 1).abs() < 1e-5)
    return clear


def derivatives(made: abbe.Normalizer, rows: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Weights, gradient to the logits, gradients to the parameters, all as float64."""
    logits = rows.clone().requires_grad_()
    weights = made(logits)
    grads = torch.autograd.grad(weights, [logits, *made.parameters()], upstream.to(rows.dtype))
    return weights.detach().double(), grads[0].double(), [g.double() for g in grads[1:]]


def assert_kernel_is_right(made: abbe.Normalizer, rows: Tensor, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    upstream = random_logits(*rows.shape, seed=5, scale=1.0)
    monkeypatch.setattr(_row_map, "FUSED_FROM", 1)
    got = derivatives(made, rows, upstream)
    monkeypatch.setattr(_row_map, "FUSED_FROM", 1 << 62)
    eager = derivatives(made, rows, upstream)
    want = derivatives(in_float64(made), rows.double(), upstream)
    clear = clear_rows(made, rows)[..., None]
    off = (got[0] - want[0]).abs().masked_fill(~clear, 0)
    assert float(off.max()) <= 8 * EPS, f"{kind}: weights off by {float(off.max()):.1e}"
    largest = float(upstream.abs().max())
    # per row: what float32 may lose, and what the eager float32 reference loses
    size = want[1].abs().amax(-1, keepdim=True).clamp(min=1)
    eager_off = (eager[1] - want[1]).abs().amax()
    off = (got[1] - want[1]).abs().masked_fill(~clear, 0)
    assert bool((off <= 3 * eager_off + 8 * EPS * size * largest).all()), (
        f"{kind}: gradient off by {float(off.max()):.1e}"
    )
    for mine, eagers, exact in zip(got[2], eager[2], want[2], strict=True):
        off, allowed = (
            (mine - exact).abs(),
            3 * (eagers - exact).abs().amax() + 16 * EPS * exact.abs().clamp(min=largest),
        )
        assert bool((off <= allowed).all()), f"{kind}: parameter gradient off by {float((off / EPS).max()):.1f} eps"


@pytest.mark.narrow
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", *map(slow, ("sparsemax", "entmax:alpha=1.25"))])
def test_kernel_of_narrow_vectors(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few maps, forward and backward: each one has to be compiled again for a narrower vector."""
    for kind in ("normal", "ties at the top", "times 1e4", "masked"):
        assert_kernel_is_right(abbe.normalizer(spec), adversarial_rows(65)[kind], monkeypatch, kind)


@every_case(quick=frozenset(spec for spec in CORE if not spec.startswith(("normmax", "budget"))))  # without kernels
@pytest.mark.parametrize("keys", LENGTHS)
def test_kernel_on_adversarial_rows(case: Case, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = case.make(torch.float32)
    for kind, rows in adversarial_rows(keys).items():
        if kind == "denormal":  # has a test of its own
            continue
        assert_kernel_is_right(made, rows, monkeypatch, kind)


@every_case()
@pytest.mark.parametrize("keys", [slow(2), 65, slow(512)])
def test_kernel_on_denormal_gaps(case: Case, keys: int, fused: None) -> None:
    """Gaps of 1e-39: below what 1/x can express in float32; everything stays finite and on the simplex."""
    made, rows = case.make(torch.float32), adversarial_rows(keys)["denormal"].requires_grad_()
    weights = made(rows)
    weights.square().sum().backward()
    assert bool(torch.isfinite(weights).all())
    assert bool((weights >= 0).all())
    if case.simplex:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=8 * EPS)


@pytest.mark.parametrize(
    "excess", [1e-6, 1 / 3, 0.99, *map(slow, (1e-4, 0.001, 0.01, 0.05, 0.2, 0.5, 0.7, 0.9, 0.999))]
)
@pytest.mark.parametrize("keys", SPARSE_LENGTHS)
def test_entmax_kernel_at_any_learned_alpha(excess: float, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = abbe.normalizer("entmax", alpha=1 + excess, learn=True)
    for kind, rows in adversarial_rows(keys, seed=1).items():
        if kind != "denormal":
            assert_kernel_is_right(made, rows, monkeypatch, kind)


@every_case("simplex")
def test_kernel_rows_sum_to_one(case: Case, fused: None) -> None:
    made = case.make(torch.float32)
    for keys in (7, 129, 1000, 4096):
        for kind, rows in adversarial_rows(keys, seed=2).items():
            weights = made(rows).detach().double()
            off = (weights.sum(-1) - 1).abs().masked_fill((weights == 0).all(-1), 0)
            assert float(off.max()) <= 4 * EPS, (keys, kind)


def float32_rows(max_keys: int = 40) -> st.SearchStrategy[list[float]]:
    """Whole numbers, ties, tiny and huge values, masked keys."""
    plain = st.floats(-30, 30, width=32)
    whole = st.integers(-4, 4).map(float)
    spread = st.floats(-1e6, 1e6, width=32)
    tiny = st.floats(-(2.0**-10), 2.0**-10, width=32, allow_subnormal=False)
    masked = st.just(float("-inf"))
    return st.one_of(
        *(
            st.lists(st.one_of(kind, kind, masked), min_size=1, max_size=max_keys)
            for kind in (plain, whole, spread, tiny)
        ),
        st.lists(st.one_of(plain, whole, tiny, masked), min_size=1, max_size=max_keys),
    )


@every_case()
@settings(max_examples=examples(30))
@given(row=float32_rows())
def test_kernel_on_drawn_rows(case: Case, row: list[float]) -> None:
    rows = torch.tensor(row).expand(3, 1, -1).contiguous()
    with pytest.MonkeyPatch.context() as patch:
        assert_kernel_is_right(case.make(torch.float32), rows, patch, "drawn")


@pytest.mark.parametrize("keys", [64, 4096, 65536])
@pytest.mark.parametrize("b", [-3.0, 0.0, 0.5, 3.0])
def test_gradient_to_the_sink_of_a_long_flat_row(keys: int, b: float, fused: None) -> None:
    """The sink's own weight is small there: taken as 1 - sum(w) it would be lost. Relative: 8 eps at any length."""
    made = abbe.normalizer("sink", b=b, learn=True)
    rows, upstream = torch.zeros(4, keys), torch.rand(4, keys, generator=torch.Generator().manual_seed(1))
    (got,), (want,) = derivatives(made, rows, upstream)[2], derivatives(in_float64(made), rows.double(), upstream)[2]
    assert float(got) == pytest.approx(float(want), rel=8 * EPS)


@every_case("learns")
def test_kernel_gives_no_gradient_nobody_asked_for(case: Case, fused: None) -> None:
    made = case.make(torch.float32).requires_grad_(False)
    logits = random_logits(2, 3, 4, 33, dtype=torch.float32).requires_grad_()
    made(logits).square().sum().backward()
    assert bool(torch.isfinite(logits.grad).all())
    assert all(raw.grad is None for raw in made.parameters())
    frozen_logits = case.make(torch.float32)
    frozen_logits(logits.detach()).square().sum().backward()
    assert any(raw.grad is not None for raw in frozen_logits.parameters())


@every_case(quick=frozenset(spec for spec in map(str, CASES) if spec in CORE or not spec.startswith("hybrid")))
@pytest.mark.parametrize("keys", [5, slow(70)])
def test_second_derivatives_through_the_kernels(case: Case, keys: int, fused: None) -> None:
    """d/dx of |gradient|^2: wrt logits, parameters and the upstream gradient."""
    made = case.make(torch.float32)
    rows = random_logits(3, 2, keys, seed=8, dtype=torch.float32)
    upstream = random_logits(3, 2, keys, seed=9, scale=1.0, dtype=torch.float32)

    def second(normalizer: abbe.Normalizer, dtype: torch.dtype) -> list[Tensor]:
        logits, given_grad = (x.to(dtype).requires_grad_() for x in (rows.clone(), upstream.clone()))
        inputs = [logits, *normalizer.parameters()]
        first = torch.autograd.grad(normalizer(logits), inputs, given_grad, create_graph=True)
        total = sum((g * torch.cos(torch.arange(g.numel(), dtype=dtype)).view_as(g)).sum() for g in first)
        return list(torch.autograd.grad(total, [*inputs, given_grad], allow_unused=True, materialize_grads=True))

    got, want = second(made, torch.float32), second(in_float64(made), torch.float64)
    for mine, exact in zip(got, want, strict=True):
        size = max(1.0, float(exact.abs().max()))
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=100 * EPS * size)


# Maps that are torch on every device; of these, entmax at any alpha is reached from the names of the entmax package.
WITHOUT_KERNELS = {"normmax", "budget", "entmax-any", "entmax-beyond-two"}


def test_every_row_map_has_both_kernels_and_is_tested() -> None:
    """Each registered map but those of the list names kernels that exist, and some case reaches them."""
    with_kernels = {name: which for name, which in _row_map.MAPS.items() if which.forward}
    assert set(_row_map.MAPS) - set(with_kernels) == WITHOUT_KERNELS
    reached: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_row_map, "row_weights", None)
        for which in with_kernels.values():
            assert callable(which.kernel("forward"))
            assert callable(which.kernel("backward"))
    original = _row_map.run_forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_row_map, "FUSED_FROM", 1)
        patch.setattr(_row_map, "run_forward", lambda x, p, name: reached.add(name) or original(x, p, name))
        for case in CASES:
            case.make(torch.float32)(random_logits(3, 2, 5, dtype=torch.float32))
        assert reached == set(with_kernels)
        reached.clear()
        for case in (case for case in CASES if str(case) in CORE):
            case.make(torch.float32)(random_logits(3, 2, 5, dtype=torch.float32))
        assert reached == set(with_kernels), "a row map without a case in the quick tier"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "spec",
    [
        "hybrid:a=(ssmax:s=0.4,learn=true),b=sparsemax,mix=0.3",  # the kernel of a case of CORE
        "hybrid:a=softmax,b=(ssmax:s=0.4,learn=true),mix=0.3",
        "hybrid:a=(sink:b=0.5,learn=true),b=(entmax:alpha=1.3,learn=true),mix=0.3",
    ],
)
def test_parts_of_a_blend_learn_as_much_as_their_share(spec: str, fused: None) -> None:
    """A fixed mixture is one kernel, and its parts may learn: against the float64 reference."""
    logits, upstream = random_logits(4, 33, dtype=torch.float32), random_logits(4, 33, seed=1, dtype=torch.float32)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        made = abbe.normalizer(spec).to(dtype)
        leaf = logits.to(dtype).requires_grad_()
        gradients.append(torch.autograd.grad(made(leaf), [leaf, *made.parameters()], upstream.to(dtype)))
    for mine, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


@every_case("learns")
def test_one_row_alone_teaches_as_well(case: Case, fused: None) -> None:
    """Kernels that sum over rows, at a single one."""
    gradients = []
    for dtype in (torch.float32, torch.float64):
        made = case.make(dtype)
        leaf = random_logits(case.heads, 1, 33, dtype=torch.float32).to(dtype).requires_grad_()
        upstream = random_logits(case.heads, 1, 33, seed=1, dtype=torch.float32).to(dtype)
        gradients.append(torch.autograd.grad(made(leaf), [leaf, *made.parameters()], upstream))
    for mine, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=2e-5)
        assert bool((exact != 0).any())
