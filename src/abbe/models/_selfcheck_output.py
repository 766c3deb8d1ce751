"""What two passes of a model are compared by: its output, or, where that is large, its last states and some logits.

What is special: logits of a vocabulary of 262,144 words take a megabyte per token. Beyond a limit only those of the
last tokens are made, and the last hidden states, from which logits are computed token by token, are compared for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ._head import makes_some_logits
from ._selfcheck import main_output, relative_error

MOST_LOGITS = 1 << 23  # 32 MiB in float32: what a common vocabulary gives for the 128 tokens of a check


class Output(NamedTuple):
    """Logits or states of all tokens; or logits of the last ones, and the last hidden states of all."""

    main: Tensor
    states: Tensor | None = None


def checked_output(network: Any, inputs: dict[str, Any]) -> Output:
    """Run the model."""
    last = last_tokens(network, inputs)
    if last is None:
        return Output(main_output(network(**inputs)))
    seen: list[Tensor] = []
    hook = network.base_model.register_forward_hook(lambda part, args, result: seen.append(main_output(result)))
    try:
        main = main_output(network(**inputs, logits_to_keep=last))
    finally:
        hook.remove()
    return Output(main, seen[-1]) if seen else Output(main_output(network(**inputs)))


def last_tokens(network: Any, inputs: dict[str, Any]) -> int | None:
    """The logits of how many tokens are few enough; None for all of them, or where the model makes no choice."""
    given, head = inputs.get("input_ids"), network.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if network.base_model is network or not isinstance(given, Tensor) or not isinstance(weight, Tensor):
        return None
    if "logits_to_keep" in inputs or not makes_some_logits(network):
        return None
    a_token = len(given) * len(weight)
    return None if given.shape[-1] * a_token <= MOST_LOGITS else max(1, MOST_LOGITS // a_token)


def output_error(network: Any, plain: Output, own: Output, inputs: dict[str, Any]) -> float:
    """How far two outputs of a model for the same inputs are apart, padding left out."""
    kept = inputs.get("decoder_attention_mask" if network.config.is_encoder_decoder else "attention_mask")
    if plain.states is None or own.states is None:
        return relative_error(plain.main, own.main, kept)
    of_last = kept[:, -plain.main.shape[1] :] if isinstance(kept, Tensor) and kept.dim() == 2 else None
    return max(relative_error(plain.states, own.states, kept), relative_error(plain.main, own.main, of_last))
