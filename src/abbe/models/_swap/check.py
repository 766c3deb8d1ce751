"""The proof of a swap: with softmax in every head, by the path of any other normalizer, the model's output stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..._errors import AbbeError
from ...normalizers import Softmax
from .._session.call import AttentionCall
from .._session.layers import LayerKey, Layers, ProjectionFinder
from .._session.selfcheck import check_complete, check_finite, tolerance
from .._session.selfcheck_output import Output, checked_output, output_error
from .groups import make_groups
from .layers import Layer


class _AsAnyOther(Softmax):
    """Softmax that attention() computes as it does any normalizer: for Softmax itself it calls torch's kernel."""


class Trial:
    """One forward pass with softmax swapped in. `groups` is what the attention function uses meanwhile."""

    def __init__(self, network: Any, layers: Sequence[Layer], seen: Layers) -> None:
        self.groups = {layer.module: groups for layer, groups in make_groups(_AsAnyOther(), layers).items()}
        self._network, self._layers = network, layers
        self._finder = ProjectionFinder(network, seen)
        self._called: set[str] = set()
        self._dtypes: set[torch.dtype] = set()
        self._most_keys = 0

    def see(self, layer: LayerKey, call: AttentionCall, output: Tensor) -> None:
        """A layer was called and has given this output."""
        check_finite(call)
        self._called.add(call.name)
        self._dtypes.add(call.query.dtype)
        self._most_keys = max(self._most_keys, call.key.shape[-2])
        self._finder.expect(layer, output)

    def error(self, plain: Output, inputs: dict[str, Any]) -> float:
        """Run the model, and compare with its plain output for the same inputs."""
        own = checked_output(self._network, inputs)
        check_complete(self._network, (layer.path for layer in self._layers), self._called, self._most_keys)
        error = output_error(self._network, plain, own, inputs)
        limit = max(tolerance(dtype) for dtype in (plain.main.dtype, *self._dtypes))
        if not error <= limit:
            raise AbbeError(
                f"check failed: softmax swapped in changes the output of {type(self._network).__name__} by "
                f"{error:.2g} of its standard deviation (allowed {limit:g})"
            )
        return error

    def close(self) -> None:
        self._finder.close()
