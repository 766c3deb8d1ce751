"""swap(model, what): another normalizer in a real model, for a time.

What is special: the model computes as before but for the map from logits to weights; masks, windows, soft caps, sinks
and biases stay as they are, and a cache works. The swap is a named attention function of its own for this one model,
known to transformers only while the swap lasts; no module of transformers is patched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...normalizers import kernels_from
from .._session.call import AttentionCall
from .._session.keywords import checked_mask, read_keywords
from .._session.masks import MaskPolicy
from .._session.modules import SWAP_PREFIX, PrivateConfigs, attention_modules, checked_network
from .._session.reader import CallReader, lock, models_within, refuse_requests_for_weights, register
from .._session.saved_plain import save_as_plain
from .._session.selfcheck import check_ready
from .._session.selfcheck_output import checked_output
from .attention import KERNELS_FROM, check_order, swapped_attention, swapped_weights
from .check import Trial
from .groups import HeadGroup, What, as_module
from .plan import Plan

Listener = Callable[[AttentionCall, Callable[[Tensor], Tensor]], object]

ATTRIBUTE = "abbe_normalizers"  # of the network, holds the normalizers during the swap

_numbers = count(1)


def swap(model: object, what: What) -> Swap:
    """Give a transformers model (or what `load` returns) other normalizers, from now until `restore` or a block's end.

    `what` is a spec; a Normalizer, which all layers share; "file:PATH" of what `Swap.save` wrote; or a mapping from
    patterns to specs or Normalizers, of which the first that names a head wins; in one line it is "PATTERN=SPEC;
    PATTERN=SPEC". A head that no pattern names keeps the model's own attention. A pattern is LAYERS or
    LAYERS.heads.HEADS: LAYERS is "*", "layers.0,2,5-7" (attention modules in the order in which the network holds them)
    or a glob of module paths, HEADS is "0,4" or "2-5".

    Example:
        >>> with abbe.swap(model, "entmax:alpha=1.5"):
        ...     model.generate(**inputs)
        >>> handle = abbe.swap(model, {"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax"})
        >>> handle.restore()
    """
    return Swap(model, what)


class Swap:
    """A model with other normalizers; `restore`, or leaving the `with` block, gives it its own attention back.

    Attributes:
        network: the transformers model.
        layers: paths of its attention modules, in the order of their numbers in patterns.
        normalizers: of every layer path, the groups of heads with their normalizers.
        error: what `check` found, None before.
    """

    def __init__(self, model: object, what: What) -> None:
        self.network = checked_network(model, "swap")
        self.error: float | None = None
        self._name = f"{SWAP_PREFIX}{next(_numbers)}"
        self._modules = attention_modules(self.network)
        self._plan = Plan(self.network, what)
        self._groups = {layer.module: groups for layer, groups in self._plan.by_layer.items()}
        self._reader = CallReader(self.network)
        self._listeners: list[Listener] = []
        self._trial: Trial | None = None  # only during the check
        self._undo: ExitStack | None = self._installed()

    @property
    def layers(self) -> list[str]:
        return self._plan.layers

    @property
    def normalizers(self) -> dict[str, tuple[HeadGroup, ...]]:
        return dict(self._plan)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the normalizers learn, each once."""
        return as_module(self._plan.by_layer).parameters()

    def restore(self) -> None:
        """Give the model its own attention back; once is enough, more do no harm."""
        if self._undo is not None:
            with lock:
                self._undo.close()
            self._undo = None

    def __enter__(self) -> Self:
        self._check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write patterns, specs and learned parameters into one safetensors file, for `swap(model, "file:PATH")`."""
        self._plan.save(path)

    def listen(self, listener: Listener) -> None:
        """Call this with (AttentionCall, weights_of), layer by layer, in every later forward pass under the swap.

        `weights_of(queries)`, of a 1-D tensor of query numbers, gives the (heads, queries, keys) weights that the layer
        uses for batch element 0, before dropout; it is valid during the call.
        """
        undo = self._check_active()
        if not self._listeners:
            with lock:
                self._reader.watch(self._modules, undo)
        self._listeners.append(listener)

    @torch.no_grad()
    def check(self, **inputs: Any) -> float:
        """Prove on these inputs that with softmax swapped in everywhere the model's own output comes out.

        Returns the largest difference over the standard deviation of the output; too large a one is an AbbeError.
        Listeners are not called. Also learns the output projections, for later calls of listeners.
        """
        self._check_active()
        check_ready(self.network, inputs)
        with self._configs.original():
            plain = checked_output(self.network, inputs)
        with ExitStack() as seen:
            self._reader.watch(self._modules, seen)
            self._trial = trial = Trial(self.network, list(self._plan.by_layer), self._reader.layers)
            try:
                self.error = trial.error(plain, inputs)
            finally:
                self._trial = None
                trial.close()
        return self.error

    def _installed(self) -> ExitStack:
        """Change the model; returns what undoes it."""
        with ExitStack() as undo, lock:
            self._configs = PrivateConfigs(self.network)
            undo.callback(self._configs.restore)
            self._configs.install(self._name)
            self._policy = MaskPolicy(self._configs.implementations(), self._modules)
            register(self._name, self._attend, self._policy.make_mask, undo)
            refuse_requests_for_weights(self.network, self._configs, undo)
            self.network.add_module(ATTRIBUTE, as_module(self._plan.by_layer).train(self.network.training))
            undo.callback(delattr, self.network, ATTRIBUTE)
            save_as_plain([part for _, part in models_within(self.network)], self._configs, undo, ATTRIBUTE)
            return undo.pop_all()

    def _check_active(self) -> ExitStack:
        if self._undo is None:
            raise AbbeError("this swap was restored already; call swap again")
        return self._undo

    def _attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **keywords: Any,
    ) -> tuple[Tensor, None]:
        """The attention function; the signature is transformers' own."""
        where = f"{type(self.network).__name__} ({self._modules.get(module, type(module).__name__)})"
        options, mask = read_keywords(where, query, keywords), checked_mask(where, attention_mask)
        causal = mask is None and self._policy.is_causal(module, options.is_causal, query.shape[-2])
        groups = self._groups_of(module, where, query.shape[1])
        check_order(where, groups, mask, causal, query.shape[-2])
        if self._listeners and self._trial is None:
            _, call = self._reader.read(module, query, key, value, mask, causal, options)
            for listener in self._listeners:
                listener(call, partial(swapped_weights, call, groups))
        with kernels_from(KERNELS_FROM):
            output = swapped_attention(module, groups, query, key, value, mask, causal, options)
        if self._trial is not None:
            layer, call = self._reader.read(module, query, key, value, mask, causal, options)
            self._trial.see(layer, call, output)
        return output, None

    def _groups_of(self, module: nn.Module, where: str, heads: int) -> tuple[HeadGroup, ...]:
        groups = (self._groups if self._trial is None else self._trial.groups).get(module)
        if groups is None:
            raise AbbeError(f"{where} is no part of the model that was swapped, but a copy of it; swap the copy itself")
        expected = sum(len(group.heads) for group in groups)
        if heads != expected:
            raise AbbeError(f"unsupported: {where} says that it has {expected} heads, but attends with {heads}")
        return groups
