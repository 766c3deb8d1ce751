"""attention: all options together against the dense reference, on every path, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_reference import near, reference
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, jaxtyped
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import abbe
from abbe import _attention as public
from abbe import _attention_blocks as engine
from abbe._attention import _blockwise, attention
from abbe._attention_blocks import BlockSize

SPECS = [
    "softmax",
    "softmax:temperature=0.7",
    "entmax:alpha=1.5",
    "sparsemax",
    "ssmax",
    "topk:k=3",
    "sigmoid",
    "stick-breaking",
    "hybrid:a=softmax,b=sparsemax",
    "entmax:alpha=1.5,learn=true,heads={heads}",
    "ssmax:s=0.5,learn=true,heads={heads}",
]


@jaxtyped(typechecker=beartype)
def typed_attention(
    q: Float[Tensor, "*batch head query width"],
    k: Float[Tensor, "*#batch kv_head key width"],
    v: Float[Tensor, "*#batch kv_head key value"],
    normalizer: abbe.Normalizer,
    **options: Any,
) -> Float[Tensor, "*batch head query value"]:
    out = attention(q, k, v, normalizer, **options)
    assert out.dtype == v.dtype
    return out


@dataclass
class Problem:
    """Arguments of attention, and the gradient of its output."""

    q: Tensor
    k: Tensor
    v: Tensor
    normalizer: abbe.Normalizer
    grad_out: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def learned(self) -> list[Tensor]:
        extra = [self.options[name] for name in ("position_bias", "sink") if name in self.options]
        return [self.q, self.k, self.v, *extra, *self.normalizer.parameters()]

    def solve(self, attend: Callable[..., Tensor], **more: Any) -> list[Tensor]:
        """Output, then the gradients of all that can learn."""
        out = attend(self.q, self.k, self.v, self.normalizer, **self.options, **more)
        if not out.requires_grad:  # the reference, where no query sees a key
            return [out, *(torch.zeros_like(t) for t in self.learned())]
        return [out, *torch.autograd.grad(out, self.learned(), self.grad_out, materialize_grads=True)]


@st.composite
def problems(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Problem:
    size = st.integers(1, 7)
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    kv_heads = draw(st.sampled_from([1, 2]))
    heads = kv_heads * draw(st.integers(1, 3))
    queries, keys, width = draw(size), draw(size), draw(st.integers(1, 4))
    value_width = draw(st.sampled_from([width, 3]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def some(shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to the given one."""
        kept = shape[draw(st.integers(0, len(shape))) :]
        return tuple(draw(st.sampled_from([n, n, 1])) for n in kept)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()

    full = (*batch, heads, queries, keys)
    chances = {
        "mask": lambda: torch.rand(some(full), generator=generator) > draw(st.sampled_from([0.3, 0.8])),
        "causal": lambda: True,
        "window": lambda: draw(st.integers(1, 5)),
        "scale": lambda: draw(st.sampled_from([0.7, -0.4])),
        "softcap": lambda: draw(st.sampled_from([0.8, 3.0])),
        "sink": lambda: normal(heads),
        "position_bias": lambda: normal(*some(full)),
    }
    options = {name: make() for name, make in chances.items() if draw(st.booleans())}
    spec = draw(st.sampled_from(SPECS)).format(heads=heads)
    k, v = normal(*some(batch), kv_heads, keys, width), normal(*some(batch), kv_heads, keys, value_width)
    return Problem(
        normal(*batch, heads, queries, width),
        k,
        v,
        distinct_heads(abbe.normalizer(spec).to(dtype)),
        normal(*batch, heads, queries, value_width).detach(),
        options,
    )


def distinct_heads(normalizer: abbe.Normalizer) -> abbe.Normalizer:
    with torch.no_grad():
        for parameter in normalizer.parameters():
            parameter += torch.linspace(-0.5, 0.5, parameter.numel(), dtype=parameter.dtype).view_as(parameter)
    return normalizer


def specified(problem: Problem) -> list[Tensor]:
    return problem.solve(lambda *args, **options: reference(*args, **options)[0])


def make(
    heads: int = 4, kv_heads: int = 2, queries: int = 6, keys: int = 6, width: int = 4, **how: Any
) -> list[Tensor]:
    """q, k and v of one batch element or, with batch=, of several."""
    batch = how.pop("batch", ())
    how = {"dtype": torch.float64, "requires_grad": True, **how}
    shapes = (heads, queries, width), (kv_heads, keys, width), (kv_heads, keys, width)
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*batch, *shape, generator=generator, **how) for shape in shapes]


TINY = BlockSize(1, 2)


# All options together


@settings(max_examples=300)
@given(problem=problems(), size=st.builds(BlockSize, st.integers(1, 4), st.integers(1, 3)))
def test_every_path_is_the_reference(problem: Problem, size: BlockSize) -> None:
    expected = specified(problem)
    assert_close(problem.solve(typed_attention), expected, rtol=1e-8, atol=1e-10)
    assert_close(problem.solve(_blockwise, size=size), expected, rtol=1e-8, atol=1e-10)
    with torch.no_grad():  # where torch's kernel is taken, if at all
        assert_close(
            attention(problem.q, problem.k, problem.v, problem.normalizer, **problem.options),
            expected[0],
            rtol=1e-8,
            atol=1e-10,
        )


@settings(max_examples=60)
@given(problem=problems(torch.float32), size=st.builds(BlockSize, st.integers(1, 4), st.integers(1, 3)))
@pytest.mark.usefixtures("fused")
def test_float32_with_the_fused_normalizers(problem: Problem, size: BlockSize) -> None:
    expected = specified(problem)
    assert_close(problem.solve(_blockwise, size=size), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(problem=problems())
def test_returned_weights_are_the_reference(problem: Problem) -> None:
    options = problem.options
    expected = reference(problem.q, problem.k, problem.v, problem.normalizer, **options)
    found = attention(problem.q, problem.k, problem.v, problem.normalizer, **options, return_weights=True)
    assert_close(found, expected, rtol=1e-8, atol=1e-10)
    dropped = attention(
        problem.q, problem.k, problem.v, problem.normalizer, **options, dropout=0.9, return_weights=True
    )
    assert_close(dropped[1], expected[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", [info.example for info in abbe.list_normalizers()])
@pytest.mark.parametrize("size", [None, TINY])
def test_queries_without_keys_give_zeros_and_zero_gradients(spec: str, size: BlockSize | None) -> None:
    normalizer = abbe.normalizer(spec).double()
    heads = max((len(p) for p in normalizer.parameters() if p.dim() == 3), default=2)
    q, k, v = make(heads=heads, kv_heads=1, queries=7, keys=5)
    bias, sink = torch.randn(7, 5, dtype=torch.float64).requires_grad_(), torch.randn(heads).double().requires_grad_()
    mask = torch.ones(7, 5, dtype=torch.bool)
    mask[4] = False
    blind = [0, 1, 4]  # two queries before the first key, one masked
    options = {"causal": True, "mask": mask, "position_bias": bias, "sink": sink}
    out = _blockwise(q, k, v, normalizer, size, **options) if size else attention(q, k, v, normalizer, **options)
    assert torch.equal(out[:, blind], torch.zeros_like(out[:, blind]))
    grads = torch.autograd.grad(out.sum() + (out**2).sum(), (q, k, v, bias, sink))
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert torch.equal(grads[0][:, blind], torch.zeros_like(grads[0][:, blind]))
    assert torch.equal(grads[3][blind], torch.zeros_like(grads[3][blind]))


# Softmax, and torch's kernel


def count_kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(None) or kernel(*a, **k))
    return calls


def hiding_mask(queries: int, keys: int) -> Tensor:
    """Hides some rows wholly, and all early keys from others: the kernel works through keys 512 at a time."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) > 0.5
    mask[: queries // 2, : keys * 9 // 10] = False
    mask[3:5] = False
    return mask


KERNEL_CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"scale": 0.3},
    "temperature": {"normalizer": "softmax:temperature=0.5", "scale": 0.3},
    "mask": {"mask": hiding_mask(700, 700)},
    "padding": {"mask": hiding_mask(2, 700)[:, None, None, :]},
    "bias": {"position_bias": torch.linspace(-3, 3, 490000, dtype=torch.float64).reshape(700, 700)},
}


@pytest.mark.parametrize("name", KERNEL_CASES)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_softmax_is_torchs_attention(name: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = make(heads=2, kv_heads=kv_heads, queries=700, keys=700, width=8, batch=(2,))
    grad = torch.randn_like(q)
    options = KERNEL_CASES[name]
    extra = options.get("mask", options.get("position_bias"))
    scale = options["scale"] / (0.5 if "normalizer" in options else 1) if "scale" in options else None
    expected = F.scaled_dot_product_attention(
        q, k, v, extra, is_causal=options.get("causal", False), scale=scale, enable_gqa=True
    )
    calls = count_kernel_calls(monkeypatch)
    found = attention(q, k, v, **options)
    assert len(calls) == 1
    blockwise = _blockwise(q, k, v, **{"normalizer": "softmax", **options})
    assert len(calls) == 1
    assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert_close(blockwise, expected, rtol=1e-10, atol=1e-12)
    grads = [torch.autograd.grad(out, (q, k, v), grad) for out in (expected, found, blockwise)]
    assert_close(grads[1], grads[0], rtol=1e-11, atol=1e-13)
    assert_close(grads[2], grads[0], rtol=1e-9, atol=1e-11)


NOT_FOR_THE_KERNEL: dict[str, dict[str, Any]] = {
    "window": {"window": 3},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": 0.0},
    "dropout": {"dropout": 0.1},
    "weights": {"return_weights": True},
    "causal and mask": {"causal": True, "mask": torch.ones(6, 6, dtype=torch.bool)},
    "mask and bias": {"mask": torch.ones(6, 6, dtype=torch.bool), "position_bias": torch.zeros(6, 6).double()},
    "bias of another dtype": {"position_bias": torch.zeros(6, 6)},
    "negative scale": {"causal": True, "scale": -1.0},
    "other normalizer": {"normalizer": "sparsemax"},
    "learned": {"normalizer": "learned-temperature"},
    "bias with temperature": {"normalizer": "softmax:temperature=2", "position_bias": torch.zeros(6, 6).double()},
}


@pytest.mark.parametrize("options", NOT_FOR_THE_KERNEL.values(), ids=NOT_FOR_THE_KERNEL.keys())
def test_torchs_kernel_is_not_asked_for_what_it_cannot_do(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_kernel_calls(monkeypatch)
    q, k, v = make(requires_grad=False)
    attention(q, k, v)
    assert len(calls) == 1
    attention(q, k, v, **options)
    attention(q[:, :4], k, v, causal=True)  # torch aligns to the first key
    attention(q, k, v[..., :2])  # would store all scores
    assert len(calls) == 1


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "stick-breaking", "topk:k=3"])
@pytest.mark.parametrize("window", [None, 3])
def test_decoding_is_the_last_row(spec: str, window: int | None) -> None:
    q, k, v = make(requires_grad=False)
    for last in (1, 2, 5):
        whole = attention(q, k, v, spec, causal=True, window=window)
        step = attention(q[:, -last:], k, v, spec, causal=True, window=window)
        assert_close(step, whole[:, -last:])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [None, TINY])
def test_no_query_sees_the_future_or_what_left_its_window(spec: str, size: BlockSize | None) -> None:
    q, k, v = make(requires_grad=False)
    normalizer = abbe.normalizer(spec.format(heads=4)).double()

    def attend() -> Tensor:
        options = {"causal": True, "window": 3}
        return _blockwise(q, k, v, normalizer, size, **options) if size else attention(q, k, v, normalizer, **options)

    before = attend()
    k[:, 2] += 5
    v[:, 2] -= 5
    moved = (attend() != before).any(-1).any(0)
    assert not moved[[0, 1, 5]].any()
    assert moved[[2, 3, 4]].any()


# Memory and work


class LargestStorage(TorchDispatchMode):
    """Bytes of the largest storage that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return out


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """Bytes of what autograd keeps for backward."""
    saved: list[int] = []

    def keep(t: Tensor) -> Tensor:
        saved.append(t.untyped_storage().nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield saved


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "topk:k=8", "sigmoid", "hybrid:a=softmax,b=sparsemax"])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window": 9}, {"sink": 1.0}, {"softcap": 5.0}, {"dropout": 0.1}]
)
def test_memory_is_a_block_forward_and_backward(spec: str, options: dict[str, Any]) -> None:
    length = 2048
    q, k, v = make(heads=2, kv_heads=1, queries=length, keys=length, width=8, dtype=torch.float32)
    limit = 1.01 * max(engine.BLOCK_BYTES, engine.MIN_QUERIES * 2 * length * 4)
    with LargestStorage() as seen:
        with saved_bytes() as saved:
            out = attention(q, k, v, spec, **options)
        out.sum().backward()
    assert seen.largest <= limit < length * length * 4
    assert sum(saved) < 4 * q.untyped_storage().nbytes()


@pytest.mark.parametrize("how", ["one batch dim", "no batch dim", "two batch dims", "strided", "mask", "learned bias"])
def test_softmax_never_stores_all_scores(how: str) -> None:
    """Torch would, of itself, in most of these cases."""
    length, dims = 1200, {"no batch dim": (), "two batch dims": (1, 2)}.get(how, (2,))
    q, k, v = make(heads=2, kv_heads=2, queries=length, keys=length, batch=dims, dtype=torch.float32)
    options: dict[str, Any] = {}
    if how == "strided":
        k = k.detach().mT.contiguous().mT.requires_grad_()
    if how == "mask":
        options["mask"] = torch.ones(length, length, dtype=torch.bool).tril()
    if how == "learned bias":
        options["position_bias"] = torch.zeros(length, length, requires_grad=True)
    passed_in = length * length * {"mask": 1, "learned bias": 4}.get(how, 0)
    with LargestStorage() as seen:
        attention(q, k, v, **options).sum().backward()
    assert seen.largest <= max(1.01 * engine.BLOCK_BYTES, passed_in)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("size", [None, BlockSize(1, 1)])
def test_grouped_heads_never_repeat_keys_and_values(spec: str, size: BlockSize | None) -> None:
    q, k, v = make(heads=16, kv_heads=1, queries=1, keys=512, width=64)
    with LargestStorage() as seen:
        out = _blockwise(q, k, v, spec, size) if size else attention(q, k, v, spec)
        out.sum().backward()
    assert seen.largest <= k.untyped_storage().nbytes()


def blocks(length: int, **options: Any) -> list[int]:
    """How many pairs of a query and a key each block computes."""
    q, k, v = (torch.empty(2, length, 8) for _ in range(3))
    rule, inputs = public._checked(q, k, v, "softmax", **options)
    call = engine.Call(rule, engine.best_block_size(rule, inputs), 0)
    pairs = [(block.queries, block.keys) for block in engine.blocks(call, inputs)]
    return [(queries.stop - queries.start) * (keys.stop - keys.start) for queries, keys in pairs]


def test_hidden_keys_cost_nothing() -> None:
    assert sum(blocks(8192)) == 8192**2
    assert sum(blocks(8192, causal=True)) < 0.52 * 8192**2
    assert sum(blocks(8192, causal=True, window=100)) < 0.15 * 8192**2
    assert len(blocks(65536, causal=True, window=100)) < 200  # a narrow window has room for more queries


# Dropout


@pytest.mark.parametrize("size", [None, TINY])
def test_dropout_keeps_the_mean_and_drops_single_weights(size: BlockSize | None) -> None:
    q, k, _ = make(heads=2, kv_heads=1, keys=40, requires_grad=False)
    v = torch.eye(40, dtype=torch.float64)[None]  # so that the output is the weights
    weights = attention(q, k, v, "sigmoid")
    rate, options = 0.25, {"dropout": 0.25}

    def dropped() -> Tensor:
        return _blockwise(q, k, v, "sigmoid", size, **options) if size else attention(q, k, v, "sigmoid", **options)

    factors = torch.stack([dropped() / weights for _ in range(300)])
    assert_close(factors, (factors > 0).double() / (1 - rate))
    assert abs(factors.mean() - 1) < 0.01
    assert (factors.mean(0) - 1).abs().max() < 0.2  # no weight is favoured
    assert not torch.equal(factors[..., :2, :] > 0, factors[..., 2:4, :] > 0)  # nor do two blocks drop the same
    torch.manual_seed(3)
    first = dropped()
    assert not torch.equal(dropped(), first)
    torch.manual_seed(3)
    assert torch.equal(dropped(), first)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"sink": 0.5}])
def test_backward_drops_what_forward_dropped(options: dict[str, Any]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return _blockwise(q, k, v, "softmax", TINY, dropout=0.4, **options)

    q, k, v = make(heads=2, kv_heads=1, queries=4, keys=5, width=2)
    assert torch.autograd.gradcheck(attend, (q, k, v))
    out = attend(q, k, v)  # linear in v
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert_close((grad * v).sum(), out.sum())


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [None, BlockSize(1, 16)])
@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "sigmoid"])
def test_half_precision_is_computed_in_float32(spec: str, dtype: torch.dtype, size: BlockSize | None) -> None:
    q, k, v = make(queries=64, keys=64, width=16, dtype=torch.float32)
    halves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
    exact = [t.detach().double().requires_grad_() for t in halves]
    bias = torch.linspace(-1, 1, 64)
    options = {"causal": True, "sink": 0.25}
    out = (
        _blockwise(*halves, spec, size, position_bias=bias, **options)
        if size
        else attention(*halves, spec, position_bias=bias, **options)
    )
    assert out.dtype == dtype
    expected = attention(*exact, spec, position_bias=bias.double(), **options)
    grad = torch.randn_like(out)
    grads = torch.autograd.grad(out, halves, grad)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    rounding = torch.finfo(dtype).eps
    for found, precise in zip((out, *grads), (expected, *wanted), strict=True):
        assert found.dtype == dtype
        assert_close(found.double(), precise, rtol=0.51 * rounding, atol=2e-5)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("length", [8, 600])
def test_autocast_changes_nothing(spec: str, length: int) -> None:
    q, k, v = make(queries=length, keys=length, dtype=torch.float32)
    expected = attention(q, k, v, spec)
    (wanted,) = torch.autograd.grad(expected.sum(), q)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, spec)
    assert torch.equal(out, expected)
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], wanted)


def test_the_backward_of_blocks_leaves_autocast_too() -> None:
    q, k, v = make(dtype=torch.float32)
    out = _blockwise(q, k, v, "sparsemax", TINY)
    (wanted,) = torch.autograd.grad(out.sum(), q, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.autograd.grad(out.sum(), q)[0], wanted)


def test_gradients_have_the_dtypes_of_what_they_belong_to() -> None:
    q, k, v = make(dtype=torch.bfloat16)
    bias, sink = torch.zeros(6, 6, requires_grad=True), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    out = _blockwise(q, k, v, "sparsemax", TINY, position_bias=bias, sink=sink)
    grads = torch.autograd.grad(out.sum(), (q, bias, sink))
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32, torch.float64]


# Layouts, and who owns the parameters


def test_transposed_and_expanded_inputs() -> None:
    q, k, v = make(batch=(2,))
    turned = [t.detach().transpose(-3, -2).contiguous().transpose(-3, -2).requires_grad_() for t in (q, k, v)]
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    expected, found = (
        _blockwise(q, k, v, "sparsemax", TINY, position_bias=bias),
        _blockwise(*turned, "sparsemax", TINY, position_bias=bias.expand(2, 4, 6, 6)),
    )
    assert_close(found, expected)
    grads = [torch.autograd.grad((out**2).sum(), (*ins, bias)) for out, ins in ((expected, (q, k, v)), (found, turned))]
    assert_close(grads[1], grads[0])


def test_a_number_is_the_sink_of_all_heads() -> None:
    q, k, v = make()
    assert_close(attention(q, k, v, sink=2), attention(q, k, v, sink=torch.full((4,), 2.0)))
    assert attention(q, k, v, sink=50.0).abs().max() < 1e-9


def test_lent_parameters_are_those_of_backward_too() -> None:
    normalizer = abbe.normalizer("entmax:alpha=1.5,learn=true,heads=4").double()
    lent = {name: (p.detach() + 0.7).requires_grad_() for name, p in normalizer.named_parameters()}
    q, k, v = make()

    class Model(torch.nn.Module):
        def __init__(self, attend: Callable[..., Tensor]) -> None:
            super().__init__()
            self.normalizer, self.attend = normalizer, attend

        def forward(self) -> Tensor:
            return self.attend(q, k, v, self.normalizer)

    def gradients(attend: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        given = {f"normalizer.{name}": p for name, p in lent.items()}
        out = torch.func.functional_call(Model(attend), given, ())
        return torch.autograd.grad((out**2).sum(), (q, *lent.values()))

    assert_close(gradients(lambda *a: _blockwise(*a, TINY)), gradients(attention))


@pytest.mark.parametrize("spec", ["softmax", "sparsemax"])
def test_empty_batches_and_no_queries(spec: str) -> None:
    for how in ({"batch": (0,)}, {"queries": 0}):
        q, k, v = make(**how)
        out = attention(q, k, v, spec, causal=True)
        assert out.shape == q.shape
        out.sum().backward()
        assert torch.equal(k.grad, torch.zeros_like(k))
        assert _blockwise(q, k, v, spec).shape == q.shape
        with torch.no_grad():
            assert attention(q, k, v, spec).shape == q.shape


# Derivatives of derivatives, transforms, compilation


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "stick-breaking"])
def test_second_derivatives_in_small_problems(spec: str) -> None:
    inputs = make(heads=2, kv_heads=1, queries=3, keys=3, width=2)
    bias = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    sink = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sink: Tensor) -> Tensor:
        return attention(q, k, v, spec, causal=True, softcap=4.0, position_bias=bias, sink=sink)

    assert torch.autograd.gradgradcheck(attend, (*inputs, bias, sink))
    assert torch.autograd.gradgradcheck(lambda *qkv: attention(*qkv, spec, causal=True), inputs)


def test_second_derivatives_of_blocks_are_refused_when_they_are_asked_for() -> None:
    q, k, v = make()
    out = _blockwise(q, k, v, "sparsemax", TINY)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert_close(grad, torch.autograd.grad(attention(q, k, v, "sparsemax").sum(), q)[0])
    with pytest.raises(abbe.AbbeError, match="second derivatives only if its scores fit in one block"):
        torch.autograd.grad(grad.sum(), q)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
@pytest.mark.parametrize("length", [6, 600])
def test_transforms(spec: str, length: int) -> None:
    q, k, v = make(queries=length, keys=length, batch=(2,), heads=2, kv_heads=1)
    with torch.no_grad():
        mask = torch.ones(2, length, length, dtype=torch.bool).tril()
        expected = attention(q, k, v, spec, mask=mask[:, None])
        mapped = torch.vmap(lambda q, k, v, mask: attention(q, k, v, spec, mask=mask))(q, k, v, mask)
        assert_close(mapped, expected)
    (wanted,) = torch.autograd.grad(attention(q, k, v, spec).sum(), q)
    assert_close(torch.func.grad(lambda q: attention(q, k, v, spec).sum())(q), wanted)
    _, tangent = torch.func.jvp(lambda q: attention(q, k, v, spec), (q,), (torch.ones_like(q),))
    assert_close(tangent.sum(), wanted.sum())


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
def test_compiles_in_one_graph(spec: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, spec, causal=True)

    torch._dynamo.reset()
    inputs = make(queries=300, keys=300, dtype=torch.float32, batch=(2,))  # more than a block
    expected = attend(*inputs)
    found = torch.compile(attend, fullgraph=True)(*inputs)
    assert_close(found, expected)
    grads = [torch.autograd.grad((out**2).sum(), inputs) for out in (found, expected)]
    assert_close(*grads, rtol=1e-4, atol=1e-5)
    mapped = torch.compile(torch.vmap(attend), fullgraph=True, backend="eager")(*inputs)
    assert_close(mapped, expected)


# Bad input

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "two dims": (
        {"q": torch.zeros(6, 4)},
        r"q must be a floating tensor \(\.\.\., heads, length, width\); got .*\(6, 4\)",
    ),
    "integers": ({"q": torch.zeros(4, 6, 4, dtype=torch.int64)}, "q must be a floating tensor .* got torch.int64"),
    "a list": ({"v": [1.0]}, r"v must be a floating tensor .* got \[1.0\]"),
    "dtypes": ({"k": torch.zeros(2, 6, 4)}, "q, k and v must have one dtype; got torch.float64, torch.float32"),
    "width": (
        {"q": torch.zeros(4, 6, 3).double()},
        r"q and k must have the same last dim.* got q \(4, 6, 3\), k \(2, 6, 4\)",
    ),
    "no width": ({"q": torch.zeros(4, 6, 0).double(), "k": torch.zeros(2, 6, 0).double()}, "same last dim, at least 1"),
    "lengths": ({"v": torch.zeros(2, 5, 4).double()}, r"k and v must have the same length .* v \(2, 5, 4\)"),
    "no keys": ({"k": torch.zeros(2, 0, 4).double(), "v": torch.zeros(2, 0, 4).double()}, "same length .*at least 1"),
    "heads": ({"q": torch.zeros(3, 6, 4).double()}, r"q a multiple of them; got q \(3, 6, 4\), k \(2, 6, 4\)"),
    "heads of v": ({"v": torch.zeros(4, 6, 4).double()}, "k and v must have the same heads"),
    "no heads": ({"k": torch.zeros(0, 6, 4).double(), "v": torch.zeros(0, 6, 4).double()}, "q a multiple of them"),
    "batch": (
        {"q": torch.zeros(2, 4, 6, 4).double(), "k": torch.zeros(3, 2, 6, 4).double()},
        r"batch dims .* must broadcast; got q \(2, 4, 6, 4\), k \(3, 2, 6, 4\)",
    ),
    "float mask": ({"mask": torch.zeros(6, 6)}, r"mask must be a bool \(True = attend\) tensor; got torch.float32"),
    "mask shape": ({"mask": torch.ones(5, 6) > 0}, r"mask must broadcast to .* = \(4, 6, 6\); got shape \(5, 6\)"),
    "mask dims": ({"mask": torch.ones(2, 4, 6, 6) > 0}, r"mask must broadcast to .* got shape \(2, 4, 6, 6\)"),
    "bool bias": ({"position_bias": torch.ones(6, 6) > 0}, "position_bias must be a floating tensor; got torch.bool"),
    "bias shape": ({"position_bias": torch.ones(6, 5)}, r"position_bias must broadcast .* got shape \(6, 5\)"),
    "sink shape": ({"sink": torch.ones(2)}, r"sink must be a number or a floating tensor of shape \(4,\).* \(2,\)"),
    "sink dtype": ({"sink": torch.ones(4, dtype=torch.int64)}, "sink must be .* got torch.int64"),
    "window": ({"window": 0}, "window must be None or an int >= 1; got 0"),
    "half a window": ({"window": 1.5}, "window must be None or an int >= 1; got 1.5"),
    "scale": ({"scale": math.nan}, "scale must be None or a finite number; got nan"),
    "learned scale": ({"scale": torch.ones(())}, "scale must be None or a finite number; got tensor"),
    "softcap": ({"softcap": 0.0}, "softcap must be None or a finite number > 0; got 0.0"),
    "dropout": ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\); got 1.0"),
    "no dropout": ({"dropout": -0.1}, r"dropout must be a number in \[0, 1\); got -0.1"),
    "normalizer": ({"normalizer": "entmx:alpha=1.5"}, "entmax"),
    "normalizer's heads": ({"normalizer": "entmax:alpha=1.5,learn=true,heads=3"}, "3 heads"),
}


@pytest.mark.parametrize(("wrong", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_bad_input_is_named_in_one_line(wrong: dict[str, Any], message: str) -> None:
    q, k, v = make()
    with pytest.raises(abbe.AbbeError, match=message) as caught:
        attention(**{"q": q, "k": k, "v": v, **wrong})
    assert "\n" not in str(caught.value)


def test_the_reference_knows_where_queries_are() -> None:
    assert near(2, 4, True, 2).tolist() == [[False, True, True, False], [False, False, True, True]]
    assert near(3, 2, False, 1).tolist() == [[False, False], [True, False], [False, True]]
