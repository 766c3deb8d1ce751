"""One call of an attention function, in transformers' signature: read and checked once, for sessions and for names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from .keywords import Keywords, checked_mask, read_keywords

Attend = Callable[["Given"], Tensor]
IsCausal = Callable[[nn.Module, Tensor, Tensor | None, Keywords], bool]  # of a call's module, query, mask and options


class Given(NamedTuple):
    """One call of the attention function, read and checked; `where` names model and layer in errors."""

    where: str
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    options: Keywords


def attention_function(
    where: Callable[[nn.Module], str], is_causal: IsCausal, attend: Attend
) -> Callable[..., tuple[Tensor, None]]:
    """What transformers calls; the signature is its own."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **keywords: Any
    ) -> tuple[Tensor, None]:
        name = where(module)
        options, mask = read_keywords(name, query, keywords), checked_mask(name, attention_mask)
        causal = is_causal(module, query, mask, options)
        return attend(Given(name, module, query, key, value, mask, causal, options)), None

    return attention
