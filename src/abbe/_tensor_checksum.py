"""A checksum of tensors, whatever file they are in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def tensor_checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Of names, types, shapes and bytes, in an order that no file decides, and of what is said about them."""
    total = hashlib.sha256(json.dumps(facts).encode())
    for key, tensor in sorted(tensors.items()):
        total.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
