"""The token vectors x_i that the geometry is measured on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ..._errors import AbbeError
from ..._float64 import where_double
from ...models import AttentionCall, input_device
from .settings import Vectors


def token_vectors(which: Vectors, call: AttentionCall, network: nn.Module, tokens: Tensor) -> Tensor:
    """(1, key heads or heads; key; feature), float32, for the keys of one attention layer.

    embedding: the model's input embeddings divided by their norm (as in arXiv 2508.17821); hidden: the layer's input
    states; value: its values; output: its values as the output projection adds them to the stream.
    """
    if which == "value":
        return call.value[0].float()
    if which == "output":
        return _as_projected(call)
    if which == "hidden":
        if call.hidden is None:
            raise AbbeError(f"{call.name}: its input states were not captured; use value vectors instead")
        return call.hidden[:1].float()
    embed: Any = network.get_input_embeddings()  # type: ignore[operator]
    # In a model spread over devices, the embedding may lie on another device than the layer.
    return normalize(embed(tokens.to(input_device(network))).float(), dim=-1).to(call.value.device)


def _as_projected(call: AttentionCall) -> Tensor:
    """Vectors with the lengths and angles of v_i W (W: a head's part of the projection) in the few dimensions of v.

    With the symmetric root C of W W^T, (v C)(u C)^T = v W W^T u^T for all v and u, so every distance is the same.
    """
    weight = where_double(call.value_to_output()).double()
    gram = weight @ weight.mT
    values, basis = torch.linalg.eigh(gram)
    # Negative eigenvalues of a Gram matrix are rounding.
    root = (basis * values.clamp(min=0).sqrt().unsqueeze(-2)) @ basis.mT
    per_head = where_double(call.value[0]).repeat_interleave(len(root) // call.value.shape[1], 0)
    projected: Tensor = per_head.float() @ root.float()
    return projected
