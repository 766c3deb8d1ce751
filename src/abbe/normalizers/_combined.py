"""Combinations of normalizers: the mixture of two, and any one at a different temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .._errors import AbbeError
from .._kernels.switch import KernelsBrokenError, loading
from .._kernels.threads import over_rows
from ._base import Normalizer
from ._entmax import AdaptiveScalableEntmax, Entmax, Sparsemax
from ._options import PER_HEAD, Option
from ._row_map import (
    NEG_INF,
    RowGradients,
    RowMap,
    as_rows,
    fused,
    kernel_named,
    lowest,
    params_of_rows,
    reference_gradients,
    row_weights,
    run_forward,
    visible_and_top,
    visible_keys,
)
from ._selection import Threshold, TopK, TopP
from ._shaped import AdaptiveTemperature, ClippedSoftmax, ElasticSoftmax, NormSoftmax
from ._softmax import LearnedSink, LearnedTemperature, LogNScaling, ScalableSoftmax, Softmax


class Combination(Normalizer):
    """A normalizer whose options include other normalizers, which become its submodules."""

    def __init__(self, **given: Any) -> None:
        from ._registry import normalizer

        nested = (option for option in self.options if option.kind == "normalizer")
        parts = {option.name: normalizer(given.get(option.name, option.default)) for option in nested}
        super().__init__(**(given | parts))
        for name, part in parts.items():
            setattr(self, name, part)
        self.sums_to_one = all(part.sums_to_one for part in parts.values())  # type: ignore[misc]
        self.continuous = all(part.continuous for part in parts.values())  # type: ignore[misc]
        self._parts = tuple(parts)

    def _validate(self, logits: Tensor, mask: Tensor | None) -> None:
        super()._validate(logits, mask)
        for name in self._parts:
            try:
                getattr(self, name)._validate(logits, None)
            except AbbeError as error:
                raise AbbeError(f"{self.name}: {error}") from None


class Hybrid(Combination):
    """mix A + (1 - mix) B, mix in [0, 1] fixed or learned per head.

    Jacobian: the same mixture of the Jacobians. `lipschitz` is the mixture of the two constants, an upper bound.
    As n grows: the mixture of the two behaviours, so a share of B always survives.
    """

    name = "hybrid"
    meaning = "mixes two selection rules; high mix means a, low mix means b"
    paper = "2508.17821 (called for there)"
    example = "hybrid:a=softmax,b=topk:k=32,mix=0.5"
    options = (
        Option("a", "softmax", "first normalizer", "normalizer", shown=True),
        Option("b", "sparsemax", "second normalizer", "normalizer", shown=True),
        Option("mix", 0.5, "share of a", low=0, high=1, closed="both", shown=True),
        *PER_HEAD,
    )
    learnable = ("mix",)
    a: Normalizer
    b: Normalizer

    @property
    def is_one_map(self) -> bool:
        return False

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        raise TypeError("a hybrid is two maps")

    def _weights(self, logits: Tensor) -> Tensor:
        if "mix" in self.learned or not (self.a.is_one_map and self.b.is_one_map):
            return torch.lerp(self.b._weights(logits), self.a._weights(logits), self._value("mix", logits))
        return blended_weights(self.a._map(logits), self.b._map(logits), logits, self._given["mix"])

    def _jacobian(self, logits: Tensor) -> Tensor:
        mix = self._value("mix", logits).unsqueeze(-1)
        return mix * self.a._jacobian(logits) + (1 - mix) * self.b._jacobian(logits)

    def _lipschitz(self, keys: int) -> float:
        first, second = self.a._lipschitz(keys), self.b._lipschitz(keys)
        shares = self._learned("mix").value().flatten().tolist() if "mix" in self.learned else [self._given["mix"]]
        return max(_mixed(share, first, second) for share in shares)


def _mixed(share: float, first: float, second: float) -> float:
    """share * first + (1 - share) * second, where a share of 0 cancels an infinite constant."""
    return (share * first if share > 0 else 0.0) + ((1 - share) * second if share < 1 else 0.0)


def blended_weights(
    first: tuple[RowMap, Tensor], second: tuple[RowMap, Tensor], logits: Tensor, share: float
) -> Tensor:
    """share * first + (1 - share) * second, each a map with its parameters."""
    (a, params_a), (b, params_b) = first, second
    if a.forward and b.forward and fused(logits) and not torch.compiler.is_compiling():
        blend: Tensor = _Blend.apply(logits, params_a, params_b, a, b, share)  # type: ignore[no-untyped-call]
        return blend
    return torch.lerp(row_weights(b, logits, params_b), row_weights(a, logits, params_a), share)


class _Blend(torch.autograd.Function):
    """Two maps of the same logits, mixed: their gradients are linear, so they are mixed too, in place."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, params_a: Tensor, params_b: Tensor, a: RowMap, b: RowMap, share: float
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        rows, mixed = as_rows(logits), torch.empty_like(as_rows(logits))
        # If no gradient is needed, the kernel gets empty arrays and does not keep the weights of both maps.
        weights_a, weights_b = (torch.empty_like(rows if keep else rows[:0]) for _ in "ab")
        params = [params_of_rows(params, logits) for params in (params_a, params_b)]
        try:
            kernel = _blend_kernel("forward", a, b)
            over_rows(kernel, len(rows), rows, *params, rows.new_tensor([share]), weights_a, weights_b, mixed)
        except KernelsBrokenError:
            weights_a = as_rows(run_forward(logits, params_a, a.name))
            weights_b = as_rows(run_forward(logits, params_b, b.name))
            mixed = torch.lerp(weights_b, weights_a, share)
        ctx.maps, ctx.share = (a, b), share
        if keep:
            ctx.save_for_backward(logits, params_a, params_b, weights_a, weights_b)
        return mixed.view(logits.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, params_a, params_b, weights_a, weights_b = ctx.saved_tensors
        (a, b), share, (_, wanted_a, wanted_b, *_) = ctx.maps, ctx.share, ctx.needs_input_grad
        # The fused gradient is only to the logits, and cannot be differentiated again.
        if not torch.is_grad_enabled() and not (wanted_a or wanted_b):
            of_logits = _blended_gradient(grad, logits, params_a, params_b, weights_a, weights_b, a, b, share)
            return of_logits, None, None, None, None, None
        weights_a, weights_b = weights_a.view(logits.shape), weights_b.view(logits.shape)
        of_a = RowGradients.apply(grad, logits, weights_a, params_a, a.name, wanted_a)  # type: ignore[no-untyped-call]
        of_b = RowGradients.apply(grad, logits, weights_b, params_b, b.name, wanted_b)  # type: ignore[no-untyped-call]
        grad_a, grad_b = (of_a[1] * share if wanted_a else None), (of_b[1] * (1 - share) if wanted_b else None)
        return torch.lerp(of_b[0], of_a[0], share), grad_a, grad_b, None, None, None


def _blended_gradient(
    grad: Tensor, logits: Tensor, params_a: Tensor, params_b: Tensor, weights_a: Tensor, weights_b: Tensor,
    a: RowMap, b: RowMap, share: float,
) -> Tensor:  # fmt: skip
    """To the logits alone."""
    rows = as_rows(logits)
    params = [params_of_rows(params, logits) for params in (params_a, params_b)]
    grad_logits, of_params = torch.empty_like(rows), rows.new_empty(0, 1)
    try:
        over_rows(
            _blend_kernel("backward", a, b), len(rows), as_rows(grad), rows, weights_a, weights_b, *params,
            rows.new_tensor([share]), grad_logits, of_params,
        )  # fmt: skip
    except KernelsBrokenError:
        of_a, _ = reference_gradients(a, grad, logits, params_a)
        of_b, _ = reference_gradients(b, grad, logits, params_b)
        return torch.lerp(of_b, of_a, share)
    return grad_logits.view(logits.shape)


def _blend_kernel(which: Literal["forward", "backward"], a: RowMap, b: RowMap) -> Callable[..., None]:
    parts = a.kernel(which), b.kernel(which)
    with loading():
        blend: Callable[..., None] = kernel_named("rows", which)(*parts)  # type: ignore[assignment]
    return blend


# The first parameter of their map is a factor of the logits, and no parameter depends on the size of the logits.
_WITH_FACTOR = (Softmax, LearnedTemperature, ScalableSoftmax, LogNScaling, Sparsemax, Entmax, AdaptiveScalableEntmax)
# Adding a constant to all logits changes nothing.
_LEVEL_FREE = (*_WITH_FACTOR, AdaptiveTemperature, NormSoftmax, TopK, TopP, Threshold, ClippedSoftmax, ElasticSoftmax)


class Scaled(Combination):
    """A(exp(t) l) for any normalizer A, t within (-ln 100, ln 100), fixed or learned per head.

    Jacobian e^t times that of A at exp(t) l. Lipschitz constant e^t times that of A, with the largest t; an upper bound
    if that of A is one, or if both differ between heads. As n grows it behaves as A does: t does not depend on n.
    Where A depends on the level of its logits, a product beyond the largest number counts as that number.
    """

    name = "scaled"
    meaning = "another normalizer at its own temperature; high t means sharp weights, low t means flat ones"
    paper = "2111.09883 (for softmax)"
    example = "scaled:of=topk:k=32,t=0.5"
    options = (
        Option("of", "softmax", "the normalizer", "normalizer", shown=True),
        Option("t", 0.0, "log of the scale", low=-math.log(100), high=math.log(100), shown=True),
        *PER_HEAD,
    )
    learnable = ("t",)
    of: Normalizer

    @property
    def is_one_map(self) -> bool:
        return isinstance(self.of, (*_WITH_FACTOR, LearnedSink)) or (isinstance(self.of, Scaled) and self.of.is_one_map)

    def _scale(self, logits: Tensor) -> Tensor:
        return torch.exp(self._value("t", logits))

    def _scaled(self, logits: Tensor) -> Tensor:
        """The logits for A, relative to their top if A allows it: a product of large numbers would be rounded.

        -inf stays -inf, and adds no 0 * inf to the gradient of the scale; a finite logit stays finite.
        """
        level = _is_level_free(self.of)
        visible, top = visible_and_top(logits) if level else (visible_keys(logits), torch.zeros_like(logits[..., :1]))
        z = torch.where(visible, logits - top, 0.0)
        # Not `clamp`, which would hide NaN and +inf from the gradient.
        z = torch.where(torch.isneginf(z) & torch.isfinite(top), lowest(logits), z)
        scaled = self._scale(logits) * z
        bounded = torch.where(torch.isfinite(z), scaled.clamp(lowest(logits), -lowest(logits)), scaled)
        return torch.where(visible, bounded, NEG_INF)

    def _map(self, logits: Tensor) -> tuple[RowMap, Tensor]:
        if not self.is_one_map:
            raise TypeError(f"{self.of} has no factor of the logits: scale the logits instead")
        which, params = self.of._map(logits)
        scale = self._scale(logits)
        factor, *rest = torch.broadcast_tensors(scale, *params.split(1, -1))[1:]  # type: ignore[no-untyped-call]
        return which, torch.cat([scale * factor, *rest], -1)

    def _weights(self, logits: Tensor) -> Tensor:
        if self.is_one_map:
            return super()._weights(logits)
        return self.of._weights(self._scaled(logits))

    def _jacobian(self, logits: Tensor) -> Tensor:
        return self._scale(logits).unsqueeze(-1) * self.of._jacobian(self._scaled(logits))

    def _lipschitz(self, keys: int) -> float:
        return math.exp(self._largest("t")) * self.of._lipschitz(keys)


def _is_level_free(normalizer: Normalizer) -> bool:
    if isinstance(normalizer, Hybrid):
        return _is_level_free(normalizer.a) and _is_level_free(normalizer.b)
    return _is_level_free(normalizer.of) if isinstance(normalizer, Scaled) else isinstance(normalizer, _LEVEL_FREE)
