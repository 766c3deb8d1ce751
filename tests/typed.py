"""The normalizers' calls with shapes in their signatures, checked by beartype."""

from __future__ import annotations

from beartype import beartype
from jaxtyping import Bool, Float, jaxtyped
from torch import Tensor

from abbe import Normalizer


@jaxtyped(typechecker=beartype)
def weights(
    normalizer: Normalizer, logits: Float[Tensor, "*batch key"], mask: Bool[Tensor, ...] | None = None
) -> Float[Tensor, "*batch key"]:
    output = normalizer(logits, mask=mask)
    assert output.dtype == logits.dtype
    return output


@jaxtyped(typechecker=beartype)
def jacobian(
    normalizer: Normalizer, logits: Float[Tensor, "*batch key"], mask: Bool[Tensor, ...] | None = None
) -> Float[Tensor, "*batch key key"]:
    slopes = normalizer.jacobian(logits, mask=mask)
    assert slopes.dtype == logits.dtype
    return slopes
