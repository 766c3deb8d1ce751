"""A GPT-2 with hand-set weights whose next token is right only if a query keeps all of the first k positions."""

from __future__ import annotations

import tiny_models
import torch
import transformers

import abbe
from abbe.models import LoadedModel, wrap

TOKEN = ord("a")
TEXT = abbe.Text("one letter", "a" * 400)
CONTEXT = 64
_MARK, _SIGN, _ONE, _FILL, _READ = range(5)  # features, each a number and its negative: the mean is 0
_WIDTH = 10
_SHARP = 60.0  # logit of a marked position; all others have 0


def model(needed: int, layers: int = 1) -> LoadedModel:
    """The first layer puts equal weight on the first `needed` positions, the last of which says what is right.

    The others before it say the contrary, faintly: of equal logits the earlier keys are kept, so that without the last
    one the answer is wrong, renormalised or not. Layers after the first do nothing.
    """
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=_WIDTH, n_layer=layers, n_head=1, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    network = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        network.transformer.wpe.weight.copy_(torch.stack([_position(i, needed) for i in range(CONTEXT)]))
        _attend(network.transformer.h[0].attn)
        network.lm_head.weight[TOKEN] = 4 * _both(_READ, 1.0)
    return wrap(network, tiny_models.byte_tokenizer(CONTEXT), f"needs {needed}")


def _both(feature: int, value: float) -> torch.Tensor:
    vector = torch.zeros(_WIDTH)
    vector[2 * feature], vector[2 * feature + 1] = value, -value
    return vector


def _position(place: int, needed: int) -> torch.Tensor:
    """Of variance 1, so that the layer norm leaves it as it is."""
    mark = 1.0 if place < needed else 0.0
    sign = 0.0 if place >= needed else 1.5 if place == needed - 1 else -0.02
    fill = (5 - mark**2 - sign**2 - 1) ** 0.5
    return _both(_MARK, mark) + _both(_SIGN, sign) + _both(_ONE, 1.0) + _both(_FILL, fill)


def _attend(attention: torch.nn.Module) -> None:
    """query: a constant; key: the mark; value: the sign, which goes to the place that is read."""
    projection, output = attention.c_attn.weight, attention.c_proj.weight
    projection[2 * _ONE, 0] = _SHARP * _WIDTH**0.5
    projection[2 * _MARK, _WIDTH] = 1.0
    projection[2 * _SIGN, 2 * _WIDTH] = 1.0
    output[0] = _both(_READ, 4.0)
