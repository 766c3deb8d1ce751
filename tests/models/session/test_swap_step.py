"""One generation step by one kernel: the numbers of the longer way and of a dense second implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import kernels_threads as _threads
from normalizer_cases import CASES, Case, every_case, slow
from tiers import examples
from tiny_models import gpt2
from torch import Tensor
from transformers import AttentionInterface

from abbe import AbbeError, Normalizer, normalizer, swap
from abbe.normalizers import Softmax, kernels_from, step_attention

pytestmark = pytest.mark.usefixtures("no_grad", "fused")

# Of all cases those that are more than one map, or one without kernels.
LONGER_WAY = (
    *("hybrid", "scaled:of=clipped", "scaled:of=sigmoid", "scaled:of=topk", "scaled:of=stick-breaking"),
    *("normmax", "budget"),
)
# Each map is a kernel to compile: the quick ones have a threshold, a selection, or a parameter per head.
SPECS = (
    "softmax",
    "entmax:alpha=1.5",
    "topk:k=32",
    "ssmax:s=0.5",
    *map(slow, ("entmax:alpha=1.3", "stick-breaking")),
)
States = tuple[Tensor, Tensor, Tensor]


def states(keys: int, batch: int = 2, heads: int = 4, key_heads: int = 2, width: int = 16, wide: int = 24) -> States:
    """Whole numbers as queries and keys: their products are exact in any order, and many logits are equal."""
    generator = torch.Generator().manual_seed(keys)
    query = torch.randint(-3, 4, (batch, heads, 1, width), generator=generator).float()
    key = torch.randint(-2, 3, (batch, key_heads, keys, width), generator=generator).float()
    return query, key, torch.randn(batch, key_heads, keys, wide, generator=generator)


@cache
def one_layer(heads: int) -> Any:
    return gpt2(n_layer=1, n_head=heads, n_embd=heads)


@contextmanager
def swapped(made: Normalizer, heads: int) -> Iterator[Callable[..., Tensor]]:
    """The attention function that a model with this normalizer calls."""
    network = one_layer(heads)
    with swap(network, made):
        function = AttentionInterface()[network.config._attn_implementation]
        module = network.transformer.h[0].attn
        yield lambda query, key, value, mask=None: function(module, query, key, value, mask, scaling=0.125)[0]


def attend(made: Normalizer, inputs: States, mask: Tensor | None = None) -> Tensor:
    with swapped(made, inputs[0].shape[1]) as attention:
        return attention(*inputs, mask)


def longer_way(made: Normalizer, inputs: States) -> Tensor:
    """With a mask that hides nothing."""
    return attend(made, inputs, torch.ones(1, 1, 1, inputs[1].shape[2], dtype=torch.bool))


def dense(made: Normalizer, inputs: States, scale: float = 0.125) -> Tensor:
    """In float64, with keys and values copied for every head."""
    query, key, value = (x.double() for x in inputs)
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return (made.double()(scale * query @ key.mT) @ value).transpose(1, 2).float()


@pytest.mark.quick(5)
@every_case()
def test_every_normalizer_gives_what_it_gave(case: Case, steps: list[str]) -> None:
    inputs = states(37, heads=3, key_heads=1)
    made = case.make(torch.float32)
    output = attend(made, inputs)
    assert len(steps) == (not case.spec.startswith(LONGER_WAY))
    assert output.shape == (2, 1, 3, 24)
    torch.testing.assert_close(output, longer_way(made, inputs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output, dense(made, inputs), rtol=1e-4, atol=1e-5)


def test_parameters_are_kept_only_where_they_cannot_change() -> None:
    """Those of a fixed alpha are made once; an alpha that learns, and another alpha, give other weights at once."""
    inputs = states(37, heads=3, key_heads=1)
    learns = normalizer("entmax:alpha=1.5,learn=true")
    for alpha in (1.5, 1.25, 1.75):
        fixed = normalizer(f"entmax:alpha={alpha}")
        learns.load_state_dict(normalizer(f"entmax:alpha={alpha},learn=true").state_dict())
        for made in (fixed, learns):
            torch.testing.assert_close(attend(made, inputs), longer_way(made, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    case=st.sampled_from([case for case in CASES if not case.spec.startswith(LONGER_WAY)]),
    keys=st.integers(1, 150),
    batch=st.integers(1, 3),
    key_heads=st.sampled_from([1, 3]),
    width=st.integers(1, 40),
    wide=st.integers(1, 40),
    power=st.integers(-8, 8),
)
def test_any_shape_and_scale(
    case: Case, keys: int, batch: int, key_heads: int, width: int, wide: int, power: int
) -> None:
    inputs, made = states(keys, batch, 3, key_heads, width, wide), case.make(torch.float32)
    with torch.no_grad(), kernels_from(1):
        output = step_attention(made, *inputs, 2.0**power)
        query, key, value = inputs
        logits = 2.0**power * query @ key.repeat_interleave(3 // key_heads, 1).mT
        wanted = made(logits) @ value.repeat_interleave(3 // key_heads, 1)
    assert output is not None
    torch.testing.assert_close(output, wanted.transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "heads", "key_heads"), [(1, 1, 1), (1, 8, 8), (3, 6, 2), (2, 4, 1), (5, 3, 3)])
@pytest.mark.parametrize(("width", "wide"), [(1, 1), (7, 3), (64, 64), (16, 33)])
def test_shapes(batch: int, heads: int, key_heads: int, width: int, wide: int, steps: list[str]) -> None:
    made, inputs = normalizer("entmax:alpha=1.5"), states(67, batch, heads, key_heads, width, wide)
    torch.testing.assert_close(attend(made, inputs), dense(made, inputs), rtol=1e-5, atol=1e-6)
    assert len(steps) == 1


def fused() -> States:
    """Queries that lie in one tensor with keys and values, so not one behind the other."""
    query, key, value = states(33)
    apart = torch.stack([query, query + 1], -1)[..., 0]
    assert not apart.is_contiguous()
    return apart, key, value


def huge() -> States:
    query, key, value = states(100)
    return query * 2.0**20, key * 2.0**20, value


def not_whole() -> States:
    generator = torch.Generator().manual_seed(0)
    query, key, value = states(300)
    query, key = (x + 0.1 * torch.randn(x.shape, generator=generator) for x in (query, key))
    return query, key, value


INPUTS: dict[str, Callable[[], States]] = {
    **{f"{keys} keys": lambda keys=keys: states(keys) for keys in (1, 2, 5, 1023, 4096)},  # type: ignore[misc]
    "fused": fused,
    "huge": huge,
    "not whole": not_whole,
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("spec", [*SPECS, *map(slow, ("sink:b=2", "norm-softmax"))])
def test_lengths_and_numbers(spec: str, name: str, steps: list[str]) -> None:
    made, (query, key, value), exact = normalizer(spec), INPUTS[name](), name == "not whole"
    output = attend(made, (query, key, value))
    assert output.isfinite().all()
    assert torch.equal(output, attend(made, (query.contiguous(), key, value)))
    assert len(steps) == 2
    torch.testing.assert_close(output, longer_way(made, (query, key, value)), rtol=1e-5, atol=1e-6)
    if name != "huge":
        rtol, atol = (1e-5, 2e-6) if exact else (1e-4, 1e-5)
        torch.testing.assert_close(output, dense(made, (query, key, value)), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bad", [torch.nan, 1e38])
@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "topk:k=32"])
def test_nan_and_overflow_spoil_their_row_only(spec: str, bad: float, steps: list[str]) -> None:
    query, key, value = states(100)
    key = key.abs() + 1
    query[1, 2] = bad
    made, inputs = normalizer(spec), (query, key, value)
    output = attend(made, inputs)
    assert len(steps) == 1
    assert output.isnan().all(-1).nonzero().tolist() == [[1, 0, 2]]
    torch.testing.assert_close(output, longer_way(made, inputs), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5"])
def test_what_masked_keys_hold_changes_nothing(spec: str) -> None:
    """As in a cache whose unused places were never written."""
    query, key, value = states(100)
    mask = (torch.arange(100) < 70)[None, None, None]
    want = attend(normalizer(spec), (query, key, value), mask)
    for junk in (torch.nan, torch.inf):
        key[:, :, 70:], value[:, :, 70:] = junk, junk
        torch.testing.assert_close(attend(normalizer(spec), (query, key, value), mask), want, rtol=1e-5, atol=1e-6)


def test_learned_values_are_read_at_every_step() -> None:
    made, inputs = normalizer("learned-temperature:t=0.5,heads=4"), states(50)
    before = attend(made, inputs)
    for raw in made.parameters():
        raw += torch.tensor([-0.5, 0, 0.5, 1]).view_as(raw)
    after = attend(made, inputs)
    assert torch.equal(before[:, :, 1], after[:, :, 1])
    assert not torch.allclose(before[:, :, 0], after[:, :, 0])
    torch.testing.assert_close(after, dense(made, inputs), rtol=1e-5, atol=1e-6)


def test_a_wrong_number_of_heads_is_refused_as_elsewhere(steps: list[str]) -> None:
    with pytest.raises(AbbeError, match=r"learned-temperature: logits must be \(\.\.\., 3 heads, queries, keys\)"):
        step_attention(normalizer("learned-temperature:t=0.5,heads=3"), *states(50), 1.0)
    assert not steps


class Loud(Softmax):
    """Reads its temperature off the logits, as no normalizer of the package does."""

    name = "loud"

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.amax(-1, keepdim=True)


def in_other_order(x: Tensor) -> Tensor:
    """The same numbers, not one behind the other: a cache as (batch, keys, heads, width)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def with_room(x: Tensor) -> Tensor:
    """The filled part of a longer cache."""
    return torch.cat([x, torch.full_like(x, 9.0)], 2)[:, :, : x.shape[2]]


CHANGES: dict[str, Callable[[States], States]] = {
    "keys in other order": lambda x: (x[0], in_other_order(x[1]), x[2]),
    "values in other order": lambda x: (x[0], x[1], in_other_order(x[2])),
    "keys with room": lambda x: (x[0], with_room(x[1]), x[2]),
    "values with room": lambda x: (x[0], x[1], with_room(x[2])),
    "float64": lambda x: (x[0].double(), x[1].double(), x[2].double()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_states_that_take_the_longer_way(what: str, steps: list[str]) -> None:
    made, inputs = normalizer("entmax:alpha=1.5"), states(50)
    output = attend(made, CHANGES[what](inputs))
    assert not steps
    torch.testing.assert_close(output.float(), dense(made, inputs), rtol=1e-5, atol=1e-6)


MISREAD: dict[str, Callable[[States], States]] = {
    "one batch element of keys": lambda x: (x[0], x[1][:1], x[2]),
    "one batch element of both": lambda x: (x[0], x[1][:1], x[2][:1]),
    "fewer values": lambda x: (x[0], x[1], x[2][:, :, 1:]),
    "fewer heads of values": lambda x: (x[0], x[1], x[2][:, :1]),
    "heads that do not share evenly": lambda x: (x[0][:, :3], x[1], x[2]),
    "a narrow query": lambda x: (x[0][..., 1:], x[1], x[2]),
    "query elsewhere": lambda x: (x[0].to("meta"), x[1], x[2]),
    "keys elsewhere": lambda x: (x[0], x[1].to("meta"), x[2]),
    "values elsewhere": lambda x: (x[0], x[1], x[2].to("meta")),
    "half the precision": lambda x: (x[0], x[1], x[2].half()),
}


@pytest.mark.parametrize("what", MISREAD)
def test_states_that_the_kernel_would_misread_are_left_alone(what: str) -> None:
    query, key, value = (x.contiguous() for x in MISREAD[what](states(50)))
    assert step_attention(normalizer("softmax"), query, key, value, 1.0) is None


def test_a_normalizer_from_elsewhere_sees_its_logits(steps: list[str]) -> None:
    made, inputs = Loud(), states(50)
    torch.testing.assert_close(attend(made, inputs), dense(made, inputs), rtol=1e-5, atol=1e-6)
    assert not steps


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_a_normalizer_see_every_step(register: str, steps: list[str]) -> None:
    made, heard = normalizer("softmax"), []
    hook = getattr(made, register)(lambda *_: heard.append(1))
    attend(made, states(50))
    assert heard == [1]
    hook.remove()
    attend(made, states(50))
    assert heard == [1]
    assert len(steps) == 1


def test_a_mask_takes_the_longer_way(steps: list[str]) -> None:
    made, (query, key, value) = normalizer("entmax:alpha=1.5"), states(50)
    mask = torch.arange(50).view(1, 1, 1, 50) < 40
    output = attend(made, (query, key, value), mask)
    assert not steps
    torch.testing.assert_close(output, dense(made, (query, key[:, :, :40], value[:, :, :40])), rtol=1e-5, atol=1e-6)


def test_gradients_and_autocast_take_the_longer_way(steps: list[str]) -> None:
    made, inputs = normalizer("entmax:alpha=1.5"), states(50)
    with torch.autocast("cpu", torch.bfloat16):
        attend(made, inputs)
    with torch.enable_grad():
        query = inputs[0].requires_grad_()
        (grad,) = torch.autograd.grad(attend(made, inputs).sum(), query)
    assert grad.abs().sum() > 0
    assert not steps


def test_compiling_and_transforms_take_the_longer_way(steps: list[str]) -> None:
    made, inputs = normalizer("softmax"), states(50)
    with swapped(made, 4) as attention:
        outputs = [
            torch.compile(attention, backend="aot_eager", fullgraph=True)(*inputs),
            torch.vmap(attention)(*(x[None] for x in inputs))[0],
        ]
    for output in outputs:
        torch.testing.assert_close(output, dense(made, inputs), rtol=1e-5, atol=1e-6)
    assert not steps


@pytest.mark.parametrize("spec", SPECS)
def test_threads_are_used_where_keys_are_many_and_change_no_bit(
    spec: str, set_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    run = _threads._run
    monkeypatch.setattr(
        _threads, "_run", lambda function, work, threads: (used.append(threads), run(function, work, threads))[1]
    )
    made, inputs = normalizer(spec), states(512, batch=1, heads=6, key_heads=3, width=64)
    results = []
    for count in (1, 2, 3):
        set_threads(count)
        results.append(attend(made, inputs))
    assert [n for n in used if n > 1] == [2, 3]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
