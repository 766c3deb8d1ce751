"""Random problems for attention with all options, and what the reference says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from attention_reference import reference
from beartype import beartype
from hypothesis import strategies as st
from inside import BlockSize
from jaxtyping import Float, jaxtyped
from torch import Tensor

import abbe
from abbe import attention

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
def problems(
    draw: st.DrawFn, dtype: torch.dtype = torch.float64, specs: tuple[str, ...] = tuple(SPECS), longest: int = 7
) -> Problem:
    size = st.integers(1, longest)
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
    spec = draw(st.sampled_from(specs)).format(heads=heads)
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
