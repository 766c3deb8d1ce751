"""The network itself, without what training and compilation put around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


def unwrapped(model: Any) -> Any:
    """What `torch.compile`, DistributedDataParallel or DataParallel were given, one around the other too."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)  # of torch.compile: its class is private
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def is_compiled(model: Any) -> bool:
    """Whether `torch.compile` is around it."""
    while isinstance(model, nn.Module):
        if getattr(model, "_orig_mod", None) is not None:
            return True
        inner = getattr(model, "module", None)
        if not isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            return False
        model = inner
    return False


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode, not compiled; then every part is put back into the mode that it had.

    The flags are set one by one: `eval()` may do more in a module that overrides it, and `train()` would put parts into
    training mode that were not.
    """
    modes = [(module, module.training) for module in network.modules()]
    with ExitStack() as undo:
        for module, mode in modes:
            undo.callback(setattr, module, "training", mode)
            module.training = False
        if "torch._dynamo" in sys.modules:  # else nothing can have been compiled
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        yield
