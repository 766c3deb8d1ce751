"""tap(model): hand every attention layer's queries, keys and values to consumers while the model runs as it is.

What is special: the model computes with SDPA as before, no attention matrix is formed, and nothing is kept after a
layer. The tap is a named attention function of its own for this one model, known to transformers only while the tap
is open; no module of transformers is patched. Before any number counts, `check` rebuilds the model's output from what
the tap captures.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ._session.call import AttentionCall
from ._session.keywords import checked_mask, read_keywords
from ._session.layers import ProjectionFinder
from ._session.masks import MaskPolicy
from ._session.modules import TAP_PREFIX, PrivateConfigs, checked_network, readable_modules, use_text_part
from ._session.output import model_attention
from ._session.reader import CallReader, lock, models_within, refuse_requests_for_weights, register
from ._session.saved_plain import save_as_plain
from ._session.selfcheck import check_complete, check_finite, check_ready, own_attention, tolerance
from ._session.selfcheck_output import Output, checked_output, output_error

Consumer = Callable[[AttentionCall], object]

_UNREAD = "its attention does not go through transformers' attention interface"

_numbers = count(1)


def tap(model: object) -> Tap:
    """A tap on the attention of a transformers model (or of what `load` returns), to be used in a `with` statement.

    Example:
        >>> with tap(network) as t:
        ...     t.check(input_ids=tokens)  # 3e-07, or an error
        ...     t.listen(lambda call: print(call.layer, call.logits(torch.tensor([100])).shape))
        ...     network(input_ids=tokens)
    """
    return Tap(model)


class Tap:
    """An open tap: `listen` adds consumers, `check` proves the capture, leaving the `with` block restores the model.

    Attributes:
        error: what `check` found, None before.
        skipped: attention modules that cannot be read, each with the reason; they compute as ever.
    """

    def __init__(self, model: object) -> None:
        self.network = checked_network(model, "tap")
        self.error: float | None = None
        self.skipped: list[str] = []
        self._name = f"{TAP_PREFIX}{next(_numbers)}"
        self._consumers: list[Consumer] = []
        self._reader = CallReader(self.network)
        self._finder: ProjectionFinder | None = None  # only during the check
        self._dtypes: set[torch.dtype] = set()
        self._most_keys = 0  # of any call of the check
        self._undo: ExitStack | None = None

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules, in the order of their first call; complete after `check`."""
        return self._reader.layers.names()

    def listen(self, consumer: Consumer) -> None:
        """Call this with an AttentionCall, layer by layer, in every later forward pass."""
        self._consumers.append(consumer)

    def __enter__(self) -> Self:
        with ExitStack() as undo, lock:
            self._configs = PrivateConfigs(self.network)
            self._modules, unread = readable_modules(self.network)
            self.skipped = [f"{path} ({type(module).__name__}): {_UNREAD}" for module, path in unread.items()]
            undo.callback(self._configs.restore)
            self._configs.install(self._name)
            self._policy = MaskPolicy(self._configs.implementations(), self._modules)
            register(self._name, self._attend, self._policy.make_mask, undo)
            self._hook(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._undo is not None:
            with lock:
                self._undo.close()
            self._undo = None

    @torch.no_grad()
    def check(self, **inputs: Any) -> float:
        """Prove on these inputs (those of the model's forward) that what the tap captures gives the model's output.

        Returns the largest difference over the standard deviation of the output; too large a one is an AbbeError.
        Consumers are not called. Also learns the layers and their output projections.
        """
        if self._undo is None:
            raise AbbeError("the tap is not open: use it as `with tap(model) as t:`")
        check_ready(self.network, inputs)
        with self._configs.original():
            plain = self._plain_output(inputs)
        own = self._rebuilt_output(inputs)
        check_complete(self.network, self._modules.values(), self.layers, self._most_keys)
        self.error = output_error(self.network, plain, own, inputs)
        limit = max(tolerance(dtype) for dtype in (plain.main.dtype, *self._dtypes))
        if not self.error <= limit:
            raise AbbeError(
                f"self-check failed: attention rebuilt from the tap changes the output of "
                f"{type(self.network).__name__} by {self.error:.2g} of its standard deviation (allowed {limit:g}); "
                "nothing was measured"
            )
        return self.error

    def _plain_output(self, inputs: dict[str, Any]) -> Output:
        try:
            return checked_output(self.network, inputs)
        except Exception as error:
            advice = use_text_part(self.network)
            if not advice or isinstance(error, AbbeError):
                raise
            raise AbbeError(
                f"{type(self.network).__name__} does not run on {', '.join(inputs)} alone{advice}"
            ) from error

    def _rebuilt_output(self, inputs: dict[str, Any]) -> Output:
        """The model's output with its attention computed from what the tap captures."""
        self._finder, self._most_keys = ProjectionFinder(self.network, self._reader.layers), 0
        try:
            return checked_output(self.network, inputs)
        finally:
            self._finder.close()
            self._finder = None

    def _hook(self, undo: ExitStack) -> None:
        self._reader.watch(self._modules, undo)
        save_as_plain([part for _, part in models_within(self.network)], self._configs, undo)
        refuse_requests_for_weights(self.network, self._configs, undo)

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
        name = self._modules.get(module, type(module).__name__)
        where = f"{type(self.network).__name__} ({name})"
        options, mask = read_keywords(where, query, keywords), checked_mask(where, attention_mask)
        causal = mask is None and self._policy.is_causal(module, options.is_causal, query.shape[-2])
        layer, call = self._reader.read(module, query, key, value, mask, causal, options)
        if self._finder is not None:
            output = self._checked_output(call)
            self._finder.expect(layer, output)
            return output, None
        self._hand_out(call)
        return model_attention(module, query, key, value, mask, causal, options), None

    def _checked_output(self, call: AttentionCall) -> Tensor:
        check_finite(call)
        self._dtypes.add(call.query.dtype)
        self._most_keys = max(self._most_keys, call.key.shape[-2])
        return own_attention(call)

    def _hand_out(self, call: AttentionCall) -> None:
        if self._consumers:
            check_finite(call)
        for consumer in self._consumers:
            consumer(call)
