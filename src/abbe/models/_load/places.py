"""Where a network in memory computes, and in which precision: read off its weights.

What is special: accelerate spreads a network by hooks. The weights of a part that it has offloaded (to memory or disk)
lie on no device until that part runs; its hook says where it will.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .device import dtype_name

_PACKED = (torch.int8, torch.uint8, torch.int32)  # quantised weights; other integers are positions of tokens


def place_of(module: nn.Module) -> torch.device | None:
    """The device on which a module computes; None if it has no weights."""
    for part in module.modules():
        weight = next(chain(part.parameters(recurse=False), part.buffers(recurse=False)), None)
        if weight is not None:
            return _runs_on(part) if weight.is_meta else weight.device
    return None


def input_device(network: Any) -> torch.device:
    """Where tokens go: to the device of the embedding.

    Args:
        network: a transformers model.

    Returns:
        The device.

    Examples:
        >>> abbe.models.input_device(abbe.load("embedded").network)
        device(type='cpu')
    """
    embedding = None
    with suppress(NotImplementedError, AttributeError):  # of two towers, for example
        embedding = network.get_input_embeddings()
    place = place_of(embedding) if isinstance(embedding, nn.Module) else None
    return place or place_of(network) or torch.device("cpu")


def devices_of(network: nn.Module) -> str:
    holding = (part for part in network.modules() if next(part.parameters(recurse=False), None) is not None)
    return "+".join(sorted({str(place) for part in holding if (place := place_of(part)) is not None})) or "cpu"


def dtypes_of(network: nn.Module) -> str:
    packed = (one for one in network.buffers() if one.dim() > 1 and one.dtype in _PACKED)
    dtypes = {dtype_name(one.dtype) for one in (*network.parameters(), *packed)}
    method = quantised_by(network)
    # Some packages show their packed weights with the dtype that they unpack them to.
    return "+".join(sorted(dtypes)) + (f" ({method})" if method else "")


def quantised_by(network: Any) -> str:
    """The method that a checkpoint names, such as "bitsandbytes"; empty for plain weights."""
    settings = getattr(getattr(network, "config", None), "quantization_config", None)
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return "" if method is None else str(getattr(method, "value", method))


def weights_in_memory(part: nn.Module) -> AbstractContextManager[object]:
    """Inside, the weights of this module that accelerate has offloaded are in memory."""
    if not any(one.is_meta for one in part.parameters(recurse=False)):
        return nullcontext()
    accelerate: Any = import_module("accelerate.utils")  # installed, since its hooks are there
    context: AbstractContextManager[object] = accelerate.align_module_device(part, "cpu")
    return context


def stored_bytes(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor; of a quantised one, which holds others, the bytes of these."""
    holder: Any = tensor
    if is_traceable_wrapper_subclass(holder):
        for name in holder.__tensor_flatten__()[0]:
            yield from stored_bytes(getattr(tensor, name))
        return
    yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _runs_on(part: nn.Module) -> torch.device | None:
    hook = getattr(part, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        if (device := getattr(one, "execution_device", None)) is not None:
            return torch.device(device)
    return None
