"""What to swap so that every query keeps its N keys of largest weight only."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ....models import LoadedModel, Swap, plan
from ....normalizers import Normalizer, Truncated, normalizer
from ....words.names import RENORMALISED
from ..loss import next_token_losses


def top_keys(keep: int, way: str = RENORMALISED) -> str:
    """Of softmax: its spec. A sink counts as a key: it is among the kept if its logit is large enough."""
    return f"topk:k={keep},renormalize={'true' if way == RENORMALISED else 'false'}"


def truncated_rules(model: LoadedModel, what: str | Mapping[str, str], keep: int) -> dict[str, Normalizer]:
    """Every head of `what` keeps its `keep` largest weights, scaled to the sum of the row; other heads are softmax."""
    rules: dict[str, Normalizer] = {}
    for path, groups in plan(model, what).items():
        for group in groups:
            heads = ",".join(str(head) for head in group.heads)
            rules[f"{path}.heads.{heads}"] = _truncated(group.normalizer, keep)
    return rules


def _truncated(inner: Normalizer | None, keep: int) -> Normalizer:
    """Top-k where it is softmax: the same weights, but with a kernel, and with the earlier of equal keys."""
    return normalizer(top_keys(keep)) if inner is None or str(inner) == "softmax" else Truncated(inner, keep)


def has_sinks(model: LoadedModel, swapped: Swap, tokens: Tensor) -> bool:
    """Whether a layer has a learned sink, which is one key more."""
    sinks: list[bool] = []
    swapped.listen(lambda call, _: sinks.append(call.sink is not None))
    next_token_losses(model, tokens)
    return any(sinks)
