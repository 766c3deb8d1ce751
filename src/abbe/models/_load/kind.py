"""Which class of transformers loads a model, and what kind of network comes out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..._errors import AbbeError

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Choice:
    """The auto class (its name in transformers) and the kind of network that it gives."""

    auto: str
    kind: Kind


def choose(config: Any, where: str | Path, saved: str | None = None) -> Choice:
    """From the class that the weights were saved as; a head that the weights lack is never initialised."""
    from transformers.models.auto import modeling_auto as auto

    kind = str(config.model_type)
    saved = saved or (getattr(config, "architectures", None) or [None])[0]
    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    pairs = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if saved is not None and saved.endswith("EncoderModel") and kind in auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES:
        return Choice("AutoModelForTextEncoding", "encoder")
    if getattr(config, "is_encoder_decoder", False):
        if kind in pairs:
            return Choice("AutoModelForSeq2SeqLM" if saved in (None, pairs[kind]) else "AutoModel", "encoder-decoder")
    elif kind in masked and not getattr(config, "is_decoder", False):
        return Choice("AutoModelForMaskedLM" if saved == masked[kind] else "AutoModel", "encoder")
    elif kind in causal:
        names = (causal[kind],) if isinstance(causal[kind], str) else causal[kind]
        return Choice("AutoModelForCausalLM" if saved in (None, *names) else "AutoModel", "decoder")
    raise AbbeError(f"{where} holds a {saved or kind}, which is not a text model that abbe can load")


def setting(config: Any, *names: str) -> int | None:
    """The first of these settings that is a whole number; where layers differ, the largest of theirs."""
    for name in names:
        # transformers raises an error if such a setting is read from the whole.
        differs = name in (getattr(config, "per_layer_attributes", None) or ())
        values = [getattr(one, name, None) for one in (config.per_layer_config if differs else [config])]
        if numbers := [value for value in values if isinstance(value, int)]:
            return max(numbers)
    return None


def longest_input(config: Any, network: Any) -> int | None:
    """The context in tokens, None if the positions set no limit."""
    limit = setting(config.get_text_config(), "max_position_embeddings")
    if limit is None or limit <= 0:
        return None
    # RoBERTa and its relatives count positions from after the padding index.
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return limit - int(module.padding_idx) - 1
    return limit
