"""A session of a network that is not from transformers: the calls that it makes go to another function for a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .._network import uncompiled
from . import Reduced, answer_pickle, detached, lock, without_hooks
from .call import Attend, AttentionCall, RawCall, Rule
from .intercept import Interception
from .modules import LayerKey, Layers
from .selfcheck import Trial, relative_error, self_check_tolerance

_open: WeakKeyDictionary[nn.Module, list[NetworkSession]] = WeakKeyDictionary()  # sessions, the last one on top
FUNCTIONS = "F.scaled_dot_product_attention, nn.MultiheadAttention or abbe.attention"
_LISTED = 3


class NetworkSession:
    """A network whose calls of attention go to another function, from `open` to `close`; with what `Session` has.

    Attributes:
        modules: those whose calls may be seen, with their paths.
        layers: those seen so far, numbered.
        skipped: modules named like attention that have not called any, each with the reason; after `check`.
        trial: the forward pass of a check in progress, None otherwise.
        error: of the last check, even if it failed.
    """

    def __init__(self, network: nn.Module, call: Callable[..., Any] | None = None) -> None:
        self.network, self._call = network, network if call is None else call
        self.modules: dict[nn.Module, str] = {}
        self.layers = Layers()
        self.skipped: list[str] = []
        self.trial: Trial | None = None
        self.error: float | None = None
        self._undo: ExitStack | None = None
        self._is_swap, self._complete = False, False
        self._called: set[nn.Module] = set()
        self._last: dict[nn.Module, tuple[LayerKey, int, int]] = {}

    @property
    def is_open(self) -> bool:
        return self._undo is not None

    def open(
        self, attend: Attend, modules: dict[nn.Module, str], change: Callable[[ExitStack], None] | None = None,
        reduced: Reduced | None = None,
    ) -> None:  # fmt: skip
        """See the calls from now on; a swap does what `change` does, and cannot be pickled."""

        def attend_once_seen(raw: RawCall) -> Tensor:
            self._called.add(raw.module)
            return attend(raw)

        above = _open.setdefault(self.network, [])
        if above and not above[-1]._is_swap:
            raise AbbeError(f"this {type(self.network).__name__} is tapped already; leave the other tap first")
        with ExitStack() as undo, lock:
            undo.enter_context(uncompiled())  # nothing of what follows is seen in a compiled graph
            self._seen = Interception(self.network, attend_once_seen, self._begin, self._end)
            self.modules = modules or self._seen.paths
            self._seen.open(undo, None if change is None else _refuse_copy)
            if change is not None:
                change(undo)
            answer_pickle([self.network], None, undo, None if reduced is None else _refuse_pickle)
            self._undo, self._is_swap = undo.pop_all(), change is not None
        above.append(self)

    def close(self) -> None:
        """Restore everything; closing twice does no harm. Refused below a session that was opened later."""
        if self._undo is not None:
            if (above := _open[self.network])[-1] is not self:
                raise AbbeError(
                    f"another tap or swap of this {type(self.network).__name__} was opened later: leave it first"
                )
            above.pop()
            with lock:
                self._undo.close()
            self._undo = None

    def watch(self) -> None:
        """Inputs are seen from the beginning."""

    def read(self, raw: RawCall, rule: Rule | None) -> tuple[LayerKey, AttentionCall]:
        """The layer that this call belongs to, and its inputs without gradients; the layer computes by this rule."""
        running, module, options = self._seen.running, raw.module, raw.options
        assert running is not None
        name, kind = self.modules.get(module, type(module).__name__), running.kind(raw)
        if not raw.again:
            self._last[module] = self.layers.enter(name, kind)
        layer, number, place = self._last[module]
        if isinstance(module, nn.MultiheadAttention):  # it does not call its projection
            self.layers.projections[layer] = module.out_proj
        call = AttentionCall(
            number, name, kind, raw.query.detach(), raw.key.detach(), raw.value.detach(), options.scale,
            options.softcap, detached(options.sink), detached(options.position_bias), options.window,
            detached(raw.mask), raw.causal, running.input(raw.query.shape[-2]), self.layers.projections.get(layer),
            place, rule,
        )  # fmt: skip
        return layer, call

    def check(self, inputs: Mapping[str, Any], failure: str, *args: Any) -> float:
        """Compare the plain output for these inputs with that in the session, whose calls go to `trial`."""
        network, name = self.network, type(self.network).__name__
        if network.training:
            raise AbbeError(
                "the network is in training mode, where dropout makes its output random; call .eval() first"
            )
        with without_hooks(network, self._seen.hooks):
            plain = list(tensors_in(self._call(*args, **inputs)))
        with ExitStack() as undo:
            self.trial = trial = Trial(network, self.layers)
            undo.callback(trial.finder.close)
            undo.callback(setattr, self, "trial", None)
            own = list(tensors_in(self._call(*args, **inputs)))
        if not trial.called:
            raise unseen(network)
        if trial.most_keys < 2:
            raise AbbeError("check needs inputs of at least 2 tokens: one token alone proves nothing about attention")
        self.skipped = silent_lines(network, self._called)
        # True = padding, whose output is arbitrary: torch's fused kernels give zeros there.
        hidden = next((x for key, x in inputs.items() if key.endswith("padding_mask") and isinstance(x, Tensor)), None)
        kept = ~hidden if hidden is not None and hidden.dtype == torch.bool else None
        if len(plain) != len(own) or not any(x.numel() > 1 for x in plain):
            raise AbbeError(f"the self-check found no tensor of numbers in the output of {name}")
        parts = [(a, b) for a, b in zip(plain, own, strict=True) if a.numel() > 1]
        self.error = max(relative_error(a, b, kept) for a, b in parts)
        limit = max(self_check_tolerance(dtype) for dtype in (*(a.dtype for a, _ in parts), *trial.dtypes))
        if not self.error <= limit:
            raise AbbeError(failure.format(model=name, error=f"{self.error:.2g}", limit=f"{limit:g}"))
        return self.error

    def _begin(self, path: str, kwargs: dict[str, Any]) -> None:
        self.layers.begin_pass("" if path == type(self.network).__name__ else path)

    def _end(self, path: str, output: Any) -> None:
        """The first pass must have called every module of a swap, and any of a tap."""
        if output is None or path != self._seen.paths[self.network] or self._complete:
            return
        if not self._called:
            raise unseen(self.network)
        silent = [path for module, path in self.modules.items() if module not in self._called]
        if self._is_swap and silent and not self.network.training:
            raise AbbeError(
                f"unsupported: {type(self.network).__name__} did not attend in {silent[0]}, as its class states, so "
                "the swap has no effect there; give inputs=..., the arguments of a pass that shows its layers"
            )
        self._complete = True


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The floating tensors of an output, however nested, without gradients."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output.detach()
    elif isinstance(output, (Mapping, list, tuple)):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(part)
    elif hasattr(output, "__dict__"):  # a dataclass, for example
        yield from tensors_in(vars(output))


def unseen(network: nn.Module) -> AbbeError:
    """A network in which no call was seen: it computes softmax by hand, or by another function."""
    like = [f"{path} ({type(module).__name__})" for module, path in _like_attention(network)]
    more = f" and {len(like) - _LISTED} more" if len(like) > _LISTED else ""
    named = f" ({', '.join(like[:_LISTED])}{more} look like attention)" if like else ""
    return AbbeError(
        f"unsupported: {type(network).__name__} calls none of {FUNCTIONS}{named}, so its attention is not seen; put "
        "abbe.attention(q, k, v, causal=True) in place of softmax(q k^T) v: the page 'Your own network' has the lines"
    )


def silent_lines(network: nn.Module, called: set[nn.Module]) -> list[str]:
    """Modules named like attention in which no call was seen, although others were."""
    silent = ((module, path) for module, path in _like_attention(network) if called.isdisjoint(module.modules()))
    return [f"{path} ({type(module).__name__}): it called none of {FUNCTIONS}" for module, path in silent]


def _like_attention(network: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    named = [(module, path) for path, module in network.named_modules() if "attention" in type(module).__name__.lower()]
    return (
        (module, path) for module, path in named if path and not any(path.startswith(f"{other}.") for _, other in named)
    )


def _refuse_copy(*args: object) -> None:
    raise AbbeError("this network is a copy that was made during a swap; swap the copy itself")


def _refuse_pickle(model: nn.Module, plain: object) -> None:
    raise AbbeError(
        f"torch.save and pickle would lose the normalizers of this {type(model).__name__}: save its state_dict(), and "
        "the swap by its save(path), or restore the swap first"
    )
