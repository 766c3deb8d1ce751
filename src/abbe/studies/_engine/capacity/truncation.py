"""What to swap in so that every query keeps only its top N keys."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ....models import LoadedModel, Swap, plan
from ....normalizers import Normalizer, Truncated, normalizer
from ....words.names import RENORMALISED
from ..loss import next_token_losses


def top_keys(keep: int, way: str = RENORMALISED) -> str:
    """The spec for softmax. A sink counts as a key: it is kept if its logit is large enough."""
    return f"topk:k={keep},renormalize={'true' if way == RENORMALISED else 'false'}"


def truncated_rules(model: LoadedModel, what: str | Mapping[str, str], keep: int) -> dict[str, Normalizer]:
    """Every head of `what` keeps its `keep` largest weights, scaled to the sum of the row; other heads are softmax."""
    rules: dict[str, Normalizer] = {}
    for path, groups in plan(model, what).items():
        for group in groups:
            inner, heads = group.normalizer, ",".join(map(str, group.heads))
            # Top-k for softmax: the same weights, but with a kernel, and the earlier of equal keys.
            rules[f"{path}.heads.{heads}"] = (
                normalizer(top_keys(keep)) if inner is None or str(inner) == "softmax" else Truncated(inner, keep)
            )
    return rules


def has_sinks(model: LoadedModel, swapped: Swap, tokens: Tensor) -> bool:
    """Whether any layer has a learned sink, which is one more key."""
    sinks: list[bool] = []
    swapped.listen(lambda call, _: sinks.append(call.sink is not None))
    next_token_losses(model, tokens)
    return any(sinks)
