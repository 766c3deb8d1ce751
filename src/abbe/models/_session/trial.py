"""What the forward pass of a self-check has seen: the layers that were called, and what projects their outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .call import AttentionCall
from .layers import LayerKey, Layers, ProjectionFinder
from .selfcheck import check_finite


class Trial:
    """One forward pass; also learns the output projections of the layers."""

    def __init__(self, network: Any, layers: Layers) -> None:
        self.called: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.most_keys = 0
        self._finder = ProjectionFinder(network, layers)

    def see(self, layer: LayerKey, call: AttentionCall, output: Tensor) -> None:
        """A layer was called and has given this output."""
        check_finite(call)
        self.called.add(call.name)
        self.dtypes.add(call.query.dtype)
        self.most_keys = max(self.most_keys, call.key.shape[-2])
        self._finder.expect(layer, output)

    def close(self) -> None:
        self._finder.close()
