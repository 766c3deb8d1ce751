"""tap(model): pass every attention layer's queries, keys and values to consumers while the model runs as always.

What is special: the model computes as before, with SDPA or the normalizers of a swap below, no attention matrix is
formed, and nothing is kept after a layer. The tap is a named attention function for this one model, registered with
transformers only while the tap is open; no module of transformers is patched. Before any number counts, `check`
rebuilds the model's output from what the tap captures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from .._errors import AbbeError
from ._network import checked_network
from ._own import readable, session_of
from ._session.call import AttentionCall, RawCall
from ._session.modules import TAP_PREFIX
from ._session.rule import attention_by, rule_of
from ._session.selfcheck import check_finite, own_attention

Consumer = Callable[[AttentionCall], object]

_FAILURE = (
    "self-check failed: attention rebuilt from the tap changes the output of {model} by {error} of its standard "
    "deviation (allowed {limit}); nothing was measured"
)


def tap(model: object) -> Tap:
    """A tap on the attention of a model, for a `with` statement: it passes every layer's inputs to listeners.

    The model computes as always, also with the normalizers of a swap, of a folder with a plan or of an "abbe:" name; no
    attention matrix is formed, and nothing is kept after a layer.

    Args:
        model: a transformers model, or what `load` returns.

    Returns:
        The tap; entering the block opens it.

    Examples:
        >>> model = abbe.load("embedded")
        >>> tokens = model.tokenizer("The cat sat on the mat.", return_tensors="pt").input_ids
        >>> shapes = []
        >>> with abbe.tap(model) as t:
        ...     error = t.check(input_ids=tokens)
        ...     t.listen(lambda call: shapes.append(call.logits(torch.tensor([2])).shape))
        ...     _ = model(input_ids=tokens)
        >>> len(shapes), error < 1e-4
        (6, True)
    """
    return Tap(model)


class Tap:
    """An open tap: `listen` adds consumers, `check` proves the capture, leaving the `with` block restores the model.

    Args:
        model: a transformers model, or what `load` returns.

    Attributes:
        network: the transformers model.

    Examples:
        >>> model = abbe.load("embedded")
        >>> with abbe.tap(model) as t:
        ...     _ = t.check(input_ids=torch.arange(16)[None])
        >>> len(t.layers), t.skipped
        (6, [])
    """

    def __init__(self, model: object) -> None:
        self.network = checked_network(model, "tap")
        self._consumers: list[Consumer] = []
        self._session = session_of(self.network, TAP_PREFIX)

    @property
    def error(self) -> float | None:
        """What `check` measured, None before: a small number means that the capture is complete."""
        return self._session.error

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules, in the order of their first call; complete after `check`."""
        return self._session.layers.names()

    @property
    def skipped(self) -> list[str]:
        """Attention modules that cannot be read, each with the reason; complete after `check`."""
        return self._session.skipped

    def listen(self, consumer: Consumer) -> None:
        """Call a consumer with an AttentionCall, layer by layer, in every later forward pass.

        Args:
            consumer: a function of an `AttentionCall`; its result is ignored.
        """
        self._consumers.append(consumer)

    def __enter__(self) -> Self:
        modules, self._session.skipped = readable(self.network)
        self._session.open(self._attend, modules)
        self._session.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @torch.no_grad()
    def check(self, *args: Any, **inputs: Any) -> float:
        """Prove on these inputs that the captured calls give the model's output; also learns the layers.

        The beginning of a text without padding is tried with padding, too. Consumers are not called.

        Args:
            args: those of the forward pass of a network that is not from transformers.
            inputs: those of the model's forward pass, by name.

        Returns:
            The largest difference, as in `Swap.check`; an `AbbeError` if rounding does not explain it.
        """
        if not self._session.is_open:
            raise AbbeError("the tap is not open: use it as `with tap(model) as t:`")
        return self._session.check(inputs, _FAILURE, *args)

    def _attend(self, raw: RawCall) -> Tensor:
        """As the model computes; during the check, attention rebuilt from the captured inputs alone."""
        rule = rule_of(raw)
        layer, call = self._session.read(raw, rule)
        if self._session.trial is not None:
            output = own_attention(call)
            if not raw.again:
                self._session.trial.see(layer, call, output)
            return output
        if self._consumers and not raw.again:
            check_finite(call)
            call = call.for_measures()
        for consumer in self._consumers:
            consumer(call)
        return attention_by(raw, rule)
