"""A checksum of tensors that does not depend on the file they are in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def tensor_checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Of names, dtypes, shapes and bytes, sorted by name, and of the facts about them."""
    total = hashlib.sha256(json.dumps(facts).encode())
    for key, tensor in sorted(tensors.items()):
        total.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
