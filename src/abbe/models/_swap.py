"""swap(model, what): another normalizer in a real model, for a time.

What is special: only the map from logits to weights changes; masks, windows, soft caps, sinks and biases stay as they
are, and a cache works. The swap is a named attention function for this one model, registered with transformers only
while the swap lasts; no module of transformers is patched.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._errors import AbbeError
from ..normalizers import Softmax, normalizer
from ._carried import hold, reduced, save_plans
from ._network import checked_network
from ._plan import Normalizers, Plan, What, standing_groups
from ._session import Session
from ._session.call import AttentionCall, HeadGroup, RawCall, Rule
from ._session.modules import SWAP_PREFIX
from ._session.rule import attention_by, first_weights, put_rules

Listener = Callable[[AttentionCall, Callable[[Tensor], Tensor]], object]
_FAILURE = (
    "check failed: {what} swapped in changes the output of {{model}} by {{error}} of its standard deviation "
    "(allowed {{limit}})"
)


class _AsAnyOther(Softmax):
    """Softmax that attention() computes like any other normalizer; for Softmax itself it calls torch's kernel."""


def swap(model: object, what: What) -> Swap:
    """Give a model other normalizers, from now until `restore` or a block's end.

    Masks, windows, soft caps, sinks, biases and caches stay as they are. A head that no pattern names keeps the
    attention that it has, also that of a swap below this one, or of a folder with a plan. A pattern is LAYERS or
    LAYERS.heads.HEADS: LAYERS is "*", "layers.0,2,5-7" (attention modules in the order in which the network holds them)
    or a glob of module paths, HEADS is "0,4" or "2-5".

    Args:
        model: a transformers model, or what `load` returns.
        what: a spec; a Normalizer, which all layers share; "file:PATH" of a file that `Swap.save` wrote; or a mapping
            from patterns to specs or Normalizers, of which the first that names a head wins, in one line
            "PATTERN=SPEC; PATTERN=SPEC".

    Returns:
        The swap, in effect from now on.

    Examples:
        >>> model = abbe.load("embedded")
        >>> tokens = torch.arange(16)[None]
        >>> before = model(input_ids=tokens).logits
        >>> with abbe.swap(model, "entmax:alpha=1.5"):
        ...     swapped = model(input_ids=tokens).logits
        >>> torch.equal(before, swapped), torch.equal(before, model(input_ids=tokens).logits)
        (False, True)
        >>> handle = abbe.swap(model, {"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax"})
        >>> handle.restore()
    """
    return Swap(model, normalizer(what) if what is None else what)  # which refuses it by name


class Swap:
    """A model with other normalizers; `restore`, or leaving the `with` block, gives it its own attention back.

    Args:
        model: a transformers model, or what `load` returns.
        what: as for `swap`; None for what the model computes with already, to listen to it.

    Attributes:
        network: the transformers model.

    Examples:
        >>> with abbe.swap(abbe.load("embedded"), "entmax:alpha=1.5,learn=true") as swapped:
        ...     learned = sum(parameter.numel() for parameter in swapped.parameters())
        >>> learned  # one alpha per head
        48
    """

    def __init__(self, model: object, what: What | None) -> None:
        self.network = checked_network(model, "swap")
        self._plan = Plan(self.network, what)
        self._rules = {layer.module: rule for layer, rule in self._plan.by_layer.items()}
        # For the check: what the model computes with, where softmax goes the same way as other normalizers.
        self._trial_rules: dict[nn.Module, Rule] = {}
        for layer in self._plan.by_layer:
            rule = standing_groups(layer)
            self._trial_rules[layer.module] = tuple(
                replace(one, normalizer=one.normalizer or _AsAnyOther()) for one in rule
            )
        self._listeners: list[Listener] = []
        self._session = Session(self.network, SWAP_PREFIX)
        self._learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        modules = {layer.module: layer.path for layer in self._plan.by_layer}
        self._session.open(self._attend, modules, self._carry, reduced)

    def _carry(self, undo: ExitStack) -> None:
        """The network has its normalizers as a part, and is saved with its plan."""
        put_rules(self._rules, undo)
        hold(self.network, self._plan.by_layer, undo)
        save_plans(self.network, undo)

    @property
    def error(self) -> float | None:
        """The result of `check`, None before: a small number means that the swap changes nothing but the normalizer."""
        return self._session.error

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules, in the order of their numbers in patterns."""
        return self._plan.layers

    @property
    def normalizers(self) -> dict[str, tuple[HeadGroup, ...]]:
        """The groups of heads with their normalizers, by layer path."""
        return dict(self._plan)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The learnable parameters of the normalizers, each once."""
        return Normalizers(self._plan.by_layer).parameters()

    def restore(self) -> None:
        """Give the model its own attention back; restoring twice does no harm."""
        self._session.close()

    def __enter__(self) -> Self:
        self._check_active()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write patterns, specs and learned parameters into one safetensors file, for `swap(model, "file:PATH")`.

        Args:
            path: of the file.
        """
        self._plan.save(path)

    def listen(self, listener: Listener) -> None:
        """Call a listener, layer by layer, in every later forward pass under the swap.

        Args:
            listener: a function of (AttentionCall, weights_of). `weights_of(queries)`, of a 1-D tensor of query
                numbers, gives the (heads, queries, keys) weights that the layer uses for batch element 0, before
                dropout; it is valid during the call.
        """
        self._check_active()
        self._session.watch()
        self._listeners.append(listener)

    @torch.no_grad()
    def check(self, **inputs: Any) -> float:
        """Prove on these inputs that with softmax swapped in everywhere the model's own output results.

        Of a swap on top of another one, or of a folder with a plan: that the normalizers below it, swapped in, give the
        output below it. The beginning of a text without padding is tried with padding, too. Listeners are not called.
        Also learns the output projections, for later calls of listeners.

        Args:
            inputs: those of the model's forward pass.

        Returns:
            The largest difference over the standard deviation of the output; rounding leaves about 1e-6 in float32.

        Raises:
            AbbeError: the difference is larger than rounding explains.
        """
        self._check_active()
        plain = all(isinstance(one.normalizer, _AsAnyOther) for rule in self._trial_rules.values() for one in rule)
        return self._session.check(inputs, _FAILURE.format(what="softmax" if plain else "the normalizers below"))

    def _check_active(self) -> None:
        if not self._session.is_open:
            raise AbbeError("this swap was restored already; call swap again")

    def _attend(self, raw: RawCall) -> Tensor:
        """The layer's attention with the normalizers of its heads; during the check with softmax in all of them."""
        trial = self._session.trial
        rule = self._rule_of(raw)
        if self._learning and not torch.compiler.is_compiling():
            self._say_if_frozen(raw)
        if self._listeners and trial is None:
            _, call = self._session.read(raw, rule)
            for listener in self._listeners:
                listener(call.for_measures(), partial(first_weights, call))
        output = attention_by(raw, rule)
        if trial is not None:
            trial.see(*self._session.read(raw, rule), output)
        return output

    def _say_if_frozen(self, raw: RawCall) -> None:
        """Warn once if a model learns, but nothing of the swap does any more: get_peft_model freezes what it finds."""
        trains = torch.is_grad_enabled() and (raw.query.requires_grad or raw.value.requires_grad)
        if trains and not any(parameter.requires_grad for parameter in self._learning):
            self._learning = []
            warnings.warn(
                "the learnable parameters of this swap were frozen after it began, as get_peft_model does, so they do "
                "not learn; if they shall, call requires_grad_(True) on each of the swap's parameters()",
                stacklevel=2,
            )

    def _rule_of(self, raw: RawCall) -> Rule:
        rule = (self._rules if self._session.trial is None else self._trial_rules).get(raw.module)
        where, heads = raw.where, raw.query.shape[1]
        if rule is None:
            raise AbbeError(f"{where} is not part of the swapped model, but of a copy; swap the copy itself")
        expected = sum(len(group.heads) for group in rule)
        if heads != expected:
            raise AbbeError(f"unsupported: {where} says that it has {expected} heads, but attends with {heads}")
        return rule
