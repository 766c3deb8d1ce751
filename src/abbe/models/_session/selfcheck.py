"""The tap's proof: attention rebuilt from the captured inputs must give the model's own output.

What is special: the rebuilt attention uses nothing but AttentionCall.weights and value, in blocks of queries, so the
proof covers exactly what consumers read. The beginning of the text is proved again with padding, without which a wrong
mask may not show. Logits of a vocabulary of 262,144 words take a megabyte per token: beyond a limit only those of the
last tokens are compared, and the last hidden states, from which all logits follow.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..._attention.engine import BLOCK_BYTES, compute_dtype, fold_heads, full_precision, unfold_heads
from ..._errors import AbbeError
from ..._tensors import where_double
from .._network import makes_some_logits
from .call import AttentionCall
from .modules import LayerKey, Layers, ProjectionFinder, use_text_part

# Rounding differs between kernels and grows from layer to layer: 1e-5 in a trained model of six layers in float32, 0.02
# in float16, 0.12 in bfloat16. A dropped mask, scale, cap or sink gives far more.
_TOLERANCE, _ROUNDINGS = 1e-3, 50
MOST_LOGITS = 1 << 23  # 32 MiB in float32: the 128 tokens of a check with a common vocabulary
_PADDED = 16  # tokens of a padded text: enough to show a wrong mask, and cheap beside the text itself
_PIECE = 1 << 20  # outputs compared at once: a vocabulary is large


def own_attention(call: AttentionCall) -> Tensor:
    """(batch, queries, heads, value width): softmax attention from the captured parts."""
    batch, heads, queries = call.query.shape[:3]
    values = call.value.to(compute_dtype(call.value))
    step = max(1, BLOCK_BYTES // (4 * batch * heads * call.key.shape[-2]))
    out = call.value.new_empty(batch, queries, heads, values.shape[-1])
    with full_precision(values):
        for start in range(0, queries, step):
            block = torch.arange(start, min(start + step, queries), device=values.device)
            weights = call.weights(block).to(values.dtype)
            rows = unfold_heads(fold_heads(weights, values.shape[1]) @ values, heads)
            out[:, block] = rows.transpose(1, 2).to(out.dtype)
    return out


class Trial:
    """The forward pass of a self-check: which layers were called; also learns their output projections."""

    def __init__(self, network: Any, layers: Layers) -> None:
        self.called: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.most_keys = 0
        self.finder = ProjectionFinder(network, layers)

    def see(self, layer: LayerKey, call: AttentionCall, output: Tensor) -> None:
        """A layer was called and has returned this output."""
        check_finite(call)
        self.called.add(call.name)
        self.dtypes.add(call.query.dtype)
        self.most_keys = max(self.most_keys, call.key.shape[-2])
        self.finder.expect(layer, output)


def padded_texts(network: Any, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The beginnings of two of these texts, the first of them padded: on the left if the model goes on writing it.

    None if they are padded already, if there is more than texts, or if the model takes no mask.
    """
    texts = {name: inputs[name] for name in ("input_ids", "decoder_input_ids") if isinstance(inputs.get(name), Tensor)}
    given = inputs.get("attention_mask")
    masked = given is not None and not (isinstance(given, Tensor) and bool(given.all()))
    takes_mask = "attention_mask" in inspect.signature(network.forward).parameters
    if masked or not takes_mask or inputs.keys() - {*texts, "attention_mask", "use_cache"} or "input_ids" not in texts:
        return None
    padded = inputs | {name: tokens[:2, :_PADDED] for name, tokens in texts.items()}
    padded["attention_mask"] = kept = torch.ones_like(padded["input_ids"])
    length, count = kept.shape[1], kept.shape[1] // 4
    on_left = network.can_generate() and not network.config.is_encoder_decoder
    kept[0, slice(count) if on_left else slice(length - count, length)] = 0
    return padded if count else None


def check_complete(network: Any, modules: Iterable[str], called: Iterable[str], most_keys: int) -> None:
    """Refuse a model that did not call every attention module, and a text that would prove nothing."""
    modules, called = list(modules), set(called)
    silent = [name for name in modules if name not in called]
    if silent:
        raise AbbeError(
            f"unsupported: {type(network).__name__} did not call {len(silent)} of its {len(modules)} "
            f"attention modules for these inputs, the first being {silent[0]}"
            f"{use_text_part(network) or '; tap the part that runs'}"
        )
    if most_keys < 2:
        # A single key has weight 1, whatever its logit.
        raise AbbeError("check needs a text of at least 2 tokens: one token alone proves nothing about attention")


def check_finite(call: AttentionCall) -> None:
    for part in ("query", "key", "value"):
        states: Tensor = getattr(call, part)
        # The sum is cheap, and finite only if all are; that of large states may overflow.
        if not (bool(states.sum().isfinite()) or bool(states.isfinite().all())):
            raise AbbeError(
                f"{call.name} (layer {call.layer}): its {part} states hold NaN or infinities; nothing was measured"
            )


def main_output(result: Any) -> Tensor:
    """A model's logits, or an encoder's last hidden states, without gradients."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(result, name, None), Tensor):
            return torch.Tensor.detach(getattr(result, name))
    first = result[0] if isinstance(result, (tuple, list)) or hasattr(result, "to_tuple") else result
    if not isinstance(first, Tensor):
        raise AbbeError(f"the self-check found neither logits nor hidden states in a {type(result).__name__}")
    return first.detach()


def relative_error(plain: Tensor, own: Tensor, kept: object = None) -> float:
    """Largest difference over the standard deviation of the plain output.

    `kept` is the model's mask: where it is (batch, position), padding is left out, since the output of a query that
    sees no key is arbitrary.
    """
    if isinstance(kept, Tensor) and kept.shape == plain.shape[:2]:
        kept = kept.bool().to(plain.device)  # a model may be spread over devices
        plain, own = plain[kept], own[kept]
    if bool(plain.isnan().any()) or not bool(plain.isfinite().any()):
        raise AbbeError("the model's own output holds NaN or no finite number; nothing was measured")
    # Over the deviation, not over the value: logits cross 0, and softmax forgets a common shift.
    values, differences = _Spread(), 0.0
    for a, b in zip(*(torch.split(x.reshape(-1), _PIECE) for x in (plain, own)), strict=True):
        finite = a.isfinite()  # a model may hide entries of its vocabulary by -inf
        if not torch.equal(a[~finite], b[~finite]) or bool(b.isnan().any()):
            return math.inf
        if bool(finite.any()):
            there, here = (where_double(x[finite]).double() for x in (a, b))
            values.add(there)
            differences = max(differences, float((there - here).abs().max()))
    if values.deviation == 0:
        raise AbbeError("the model's output is one number everywhere, from which the self-check can prove nothing")
    return differences / values.deviation


class _Spread:
    """Standard deviation of numbers that come in pieces."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, piece: Tensor) -> None:
        mean, count = float(piece.mean()), self.count + len(piece)
        # Chan's update of mean and squares: sums of squares of large outputs would cancel.
        shift = mean - self.mean
        self.squares += float((piece - mean).square().sum()) + shift**2 * self.count * len(piece) / count
        self.mean += shift * len(piece) / count
        self.count = count

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def self_check_tolerance(dtype: torch.dtype) -> float:
    """The largest error of a self-check that rounding in this dtype explains.

    Args:
        dtype: of the weights.

    Returns:
        A share of the standard deviation of the output; above it, nothing is measured.

    Examples:
        >>> abbe.models.self_check_tolerance(torch.float32) < abbe.models.self_check_tolerance(torch.bfloat16)
        True
    """
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps)


def checked_output(network: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """Logits or states of all tokens; or logits of the last ones, and the last hidden states of all."""
    tokens, last = inputs.get("input_ids"), None
    if isinstance(tokens, Tensor) and "logits_to_keep" not in inputs:
        last = last_tokens(network, len(tokens), tokens.shape[-1])
    if last is None:
        return [main_output(network(**inputs))]
    seen: list[Tensor] = []
    hook = network.base_model.register_forward_hook(lambda part, args, result: seen.append(main_output(result)))
    try:
        main = main_output(network(**inputs, logits_to_keep=last))
    finally:
        hook.remove()
    # A model that calls its body without hooks shows no states: all logits then.
    return [main, seen[-1]] if seen else [main_output(network(**inputs))]


def last_tokens(network: Any, texts: int, tokens: int) -> int | None:
    """How many of the last tokens of texts get logits; None for all, or if the model cannot choose."""
    per_token = texts * _vocabulary(network)
    if tokens * per_token <= MOST_LOGITS or not makes_some_logits(network) or network.base_model is network:
        return None
    return max(1, MOST_LOGITS // per_token)


def checked_logits(network: Any, tokens: int) -> int:
    """How many numbers the check of one row of tokens compares.

    Args:
        network: a transformers model.
        tokens: >= 1.

    Returns:
        The number of logits and states.

    Examples:
        >>> model = abbe.load("embedded")
        >>> abbe.models.checked_logits(model.network, 16) == 16 * model.network.config.vocab_size
        True
    """
    last, vocabulary = last_tokens(network, 1, tokens), _vocabulary(network)
    if last is None:
        return tokens * vocabulary
    return last * vocabulary + tokens * int(network.config.get_text_config().hidden_size)


def _vocabulary(network: Any) -> int:
    """Logits per token, 0 without a head."""
    weight = getattr(network.get_output_embeddings(), "weight", None)
    return len(weight) if isinstance(weight, Tensor) else 0


def output_error(network: Any, plain: list[Tensor], own: list[Tensor], inputs: dict[str, Any]) -> float:
    """The largest difference between two outputs of a model for the same inputs, without padding."""
    kept = inputs.get("decoder_attention_mask" if network.config.is_encoder_decoder else "attention_mask")
    masks: list[Any] = [kept] * len(plain)
    if len(plain) == 2 and isinstance(kept, Tensor) and kept.dim() == 2:
        masks[0] = kept[:, -plain[0].shape[1] :]
    return max(relative_error(*parts) for parts in zip(plain, own, masks, strict=True))
