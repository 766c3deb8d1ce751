"""How two passes of a model are compared: by its output, or, if that is large, by its last states and some logits.

What is special: logits of a vocabulary of 262,144 words take a megabyte per token. Beyond a limit only those of the
last tokens are computed, and the last hidden states, from which all logits follow, are compared for every token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .._head import makes_some_logits
from .selfcheck import main_output, relative_error

MOST_LOGITS = 1 << 23  # 32 MiB in float32: the 128 tokens of a check with a common vocabulary


class Output(NamedTuple):
    """Logits or states of all tokens; or logits of the last ones, and the last hidden states of all."""

    main: Tensor
    states: Tensor | None = None


def checked_output(network: Any, inputs: dict[str, Any]) -> Output:
    last = last_tokens(network, inputs)
    if last is None:
        return Output(main_output(network(**inputs)))
    seen: list[Tensor] = []
    hook = network.base_model.register_forward_hook(lambda part, args, result: seen.append(main_output(result)))
    try:
        main = main_output(network(**inputs, logits_to_keep=last))
    finally:
        hook.remove()
    # A model that calls its body without hooks shows no states: all logits then.
    return Output(main, seen[-1]) if seen else Output(main_output(network(**inputs)))


def last_tokens(network: Any, inputs: dict[str, Any]) -> int | None:
    """For how many of the last tokens logits are computed; None for all of them, or if the model cannot choose."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or "logits_to_keep" in inputs or not _can_choose(network):
        return None
    per_token = len(tokens) * _vocabulary(network)
    return None if tokens.shape[-1] * per_token <= MOST_LOGITS else max(1, MOST_LOGITS // per_token)


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
    vocabulary = _vocabulary(network)
    if tokens * vocabulary <= MOST_LOGITS or not _can_choose(network):
        return tokens * vocabulary
    return MOST_LOGITS // vocabulary * vocabulary + tokens * int(network.config.get_text_config().hidden_size)


def _can_choose(network: Any) -> bool:
    """Whether the model can skip logits, and shows the states behind them."""
    return makes_some_logits(network) and network.base_model is not network and _vocabulary(network) > 0


def _vocabulary(network: Any) -> int:
    """Logits per token, 0 without a head."""
    weight = getattr(network.get_output_embeddings(), "weight", None)
    return len(weight) if isinstance(weight, Tensor) else 0


def output_error(network: Any, plain: Output, own: Output, inputs: dict[str, Any]) -> float:
    """The difference between two outputs of a model for the same inputs, without padding."""
    kept = inputs.get("decoder_attention_mask" if network.config.is_encoder_decoder else "attention_mask")
    if plain.states is None or own.states is None:
        return relative_error(plain.main, own.main, kept)
    of_last = kept[:, -plain.main.shape[1] :] if isinstance(kept, Tensor) and kept.dim() == 2 else None
    return max(relative_error(plain.states, own.states, kept), relative_error(plain.main, own.main, of_last))
