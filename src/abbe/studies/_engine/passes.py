"""One forward pass per window, many readers: several tables share the same pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...models import LoadedModel, Window


class PassReader(Protocol):
    """Listens to a tap while `window` is set, and ignores all other passes: a tap keeps its consumers."""

    window: Window | None

    def wants(self, window: Window) -> bool:
        """Whether it still needs this window."""
        return True

    def done(self, window: Window) -> None:
        """The pass is over: the whole window was read."""
        return

    def parts_of(self, window: Window) -> Sequence[str]:
        """Names of the parts that it keeps of a window, as tensors."""
        return ()


@torch.no_grad()
def read_window(model: LoadedModel, window: Window, readers: Iterable[PassReader]) -> bool:
    """Run the model on a window for all readers that want it; False if none does."""
    wanting = [reader for reader in readers if reader.wants(window)]
    if not wanting:
        return False
    for reader in wanting:
        reader.window = window
    try:
        run_model(model, window.tokens)
    finally:
        for reader in wanting:
            reader.window = None
    for reader in wanting:
        reader.done(window)
    return True


def run_model(model: LoadedModel, tokens: Tensor) -> Any:
    """One forward pass without the language-model head, if there is one."""
    network: Any = model.network
    return network.base_model(**model_inputs(model, tokens))


def model_inputs(model: LoadedModel, tokens: Tensor) -> dict[str, Any]:
    """The arguments of a forward pass on one row of tokens; an encoder-decoder reads it with both halves."""
    batch = tokens[None].to(model.device)
    if model.kind == "encoder-decoder":
        return {"input_ids": batch, "decoder_input_ids": batch, "use_cache": False}
    return {"input_ids": batch} if model.kind == "encoder" else {"input_ids": batch, "use_cache": False}
