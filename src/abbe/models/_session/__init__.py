"""One model with another attention function for a time: the base of `tap` and `swap`, which may lie on a swap.

What is special: the function is registered with transformers under a private name, for this one model and only while
the session is open; no module of transformers is patched. Settings, registries, hooks and parts are restored by one
stack of undo steps, also when opening fails half-way.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .._network import changed
from .call import Attend, AttentionCall, Keywords, MaskPolicy, RawCall, Rule, attention_function, refuse_weights
from .modules import (
    LayerKey,
    Layers,
    PrivateConfigs,
    attention_input,
    attention_kind,
    configs_within,
    refuse_if_covered,
    use_text_part,
)
from .rule import put
from .selfcheck import Trial, check_complete, checked_output, output_error, padded_texts, self_check_tolerance

# Held while a model's settings, hooks and registered names change.
lock = threading.Lock()
_numbers = count(1)


class Session:
    """A model whose attention modules call another function, from `open` to `close`; the last one opened counts.

    Attributes:
        modules: the attention modules with their paths.
        layers: those seen so far, numbered.
        skipped: attention modules that cannot be read, each with the reason.
        trial: the forward pass of a check in progress, None otherwise.
        error: of the last check, even if it failed.
    """

    def __init__(self, network: Any, prefix: str) -> None:
        self.network = network
        self.modules: dict[nn.Module, str] = {}
        self.layers = Layers()
        self.skipped: list[str] = []
        self.trial: Trial | None = None
        self.error: float | None = None
        self._name = f"{prefix}{next(_numbers)}"
        self._undo: ExitStack | None = None
        self._watching = False
        self._inputs: dict[nn.Module, tuple[Tensor | None, Literal["self", "cross"]]] = {}

    @property
    def is_open(self) -> bool:
        return self._undo is not None

    def open(
        self, attend: Attend, modules: dict[nn.Module, str], change: Callable[[ExitStack], None] | None = None,
        reduced: Reduced | None = None,
    ) -> None:  # fmt: skip
        """Change the model: these attention modules (with their paths) call `attend`.

        `change` does what else is to be changed, and undone; `reduced` says what pickle writes.
        """
        with ExitStack() as undo, lock:
            self._configs = PrivateConfigs(self.network)
            self.modules = modules
            self._configs.install(self._name, undo)
            self._policy = MaskPolicy(self._configs.implementations(), modules, self._configs.is_eager)
            called: set[nn.Module] = set()

            def attend_once_seen(raw: RawCall) -> Tensor:
                if not torch.compiler.is_compiling():
                    called.add(raw.module)
                return attend(raw)

            function = attention_function(self._where, self._is_causal, attend_once_seen)
            register(self._name, function, self._policy.make_mask, undo)
            watch_passes(self.network, modules, called, self._configs, undo)
            if change is not None:
                change(undo)
            models = [model for _, model in models_within(self.network)]
            answer_pickle(models, self._configs, undo, reduced)
            # Only now: an error before this point undoes everything.
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Restore everything; closing twice does no harm. Refused below a session that was opened later."""
        if self._undo is not None:
            refuse_if_covered(self.network, self._name)
            with lock:
                self._undo.close()
            self._undo, self._watching = None, False

    def watch(self) -> None:
        """See inputs and kinds of layers from now on: `read` needs them."""
        if self._undo is not None and not self._watching:
            with lock:
                self._watch_inputs(self._undo)
            self._watching = True

    def read(self, raw: RawCall, rule: Rule | None) -> tuple[LayerKey, AttentionCall]:
        """The layer that this call belongs to, and its inputs without gradients; the layer computes by this rule."""
        name, options = self.modules.get(raw.module, type(raw.module).__name__), raw.options
        # Removed: otherwise the states of every layer would live until its next call.
        hidden, kind = self._inputs.pop(raw.module, (None, "self"))
        layer, number, place = self.layers.enter(name, kind)
        call = AttentionCall(
            number, name, kind, raw.query.detach(), raw.key.detach(), raw.value.detach(), options.scale,
            options.softcap, detached(options.sink), detached(options.position_bias), options.window,
            detached(raw.mask), raw.causal, hidden, self.layers.projections.get(layer), place, rule,
        )  # fmt: skip
        return layer, call

    def check(self, inputs: dict[str, Any], failure: str, *args: object) -> float:
        """Compare the model's output without the session with that in the session, whose calls go to `trial`.

        The beginning of a text without padding is compared once more, with padding. Returns the largest difference over
        the standard deviation. If it is too large, the error `failure` is raised, with {model}, {error} and {limit}
        filled in.
        """
        if args:
            raise AbbeError("check takes the inputs of a transformers model by name, such as input_ids=...")
        if self.network.training:
            raise AbbeError("the model is in training mode, where dropout makes its output random; call .eval() first")
        if inputs.get("past_key_values") is not None:
            raise AbbeError("check runs the model twice and needs inputs without past_key_values, which a run changes")
        model, padded = type(self.network).__name__, padded_texts(self.network, inputs)
        with self._configs.original():
            cases = [(model, inputs, self._plain_output(inputs))]
            if padded is not None:
                # A model that fails on padded texts, or makes NaN of them, has no output to compare with.
                with suppress(Exception):
                    plain = checked_output(self.network, padded)
                    if not bool(plain[0].isnan().any()):
                        cases.append((f"{model} with padding", padded, plain))
        with ExitStack() as undo:
            if not self._watching:
                self._watch_inputs(undo)
            self.trial = trial = Trial(self.network, self.layers)
            undo.callback(trial.finder.close)
            undo.callback(setattr, self, "trial", None)
            outputs = [checked_output(self.network, given) for _, given, _ in cases]
        check_complete(self.network, self.modules.values(), trial.called, trial.most_keys)
        worst = 0.0
        for (name, given, plain), own in zip(cases, outputs, strict=True):
            error = output_error(self.network, plain, own, given)
            self.error = worst = max(error, worst)
            # The coarsest dtype decides: attention may be computed in another one than the output.
            limit = max(self_check_tolerance(dtype) for dtype in (plain[0].dtype, *trial.dtypes))
            # `not <=`, so that NaN fails.
            if not error <= limit:
                raise AbbeError(failure.format(model=name, error=f"{error:.2g}", limit=f"{limit:g}"))
        return worst

    def _plain_output(self, inputs: dict[str, Any]) -> list[Tensor]:
        try:
            return checked_output(self.network, inputs)
        except Exception as error:
            advice = use_text_part(self.network)
            if not advice or isinstance(error, AbbeError):
                raise
            raise AbbeError(
                f"{type(self.network).__name__} does not run on {', '.join(inputs)} alone{advice}"
            ) from error

    def _watch_inputs(self, undo: ExitStack) -> None:
        """See the inputs of the attention modules, and where a forward pass begins."""
        undo.callback(self._inputs.clear)
        for module in self.modules:
            undo.callback(module.register_forward_pre_hook(self._see_input, with_kwargs=True).remove)
        for name, part in models_within(self.network):
            undo.callback(part.register_forward_pre_hook(self._begin(name)).remove)

    def _begin(self, prefix: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda part, args: self.layers.begin_pass(prefix)

    def _see_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs[module] = attention_input(args, kwargs), attention_kind(module, args, kwargs)

    def _where(self, module: nn.Module) -> str:
        return f"{type(self.network).__name__} ({self.modules.get(module, type(module).__name__)})"

    def _is_causal(self, module: nn.Module, query: Tensor, mask: Tensor | None, options: Keywords) -> bool:
        return mask is None and self._policy.is_causal(module, options.is_causal, query.shape[-2])


def register(name: str, attend: Callable[..., Any], make_mask: Any, undo: ExitStack) -> None:
    """Register an attention function, and its mask function if any, with transformers until `undo` closes."""
    from transformers import AttentionInterface, AttentionMaskInterface  # slow to import

    for interface, function in ((AttentionInterface, attend), (AttentionMaskInterface, make_mask)):
        if function is not None:
            interface.register(name, function)
            # There is no public way to unregister.
            undo.callback(interface._global_mapping.pop, name, None)


def watch_passes(
    network: nn.Module, modules: dict[nn.Module, str], called: set[nn.Module], configs: PrivateConfigs, undo: ExitStack
) -> None:
    """Refuse output_attentions, by keyword or by the model's settings; and a pass that goes around these modules.

    On such a pass a session would have no effect. A part that did not run is fine: an encoder whose states are given, a
    tower for images, a dropped layer. So the first pass of each module, of what holds it, and of the network is
    watched: it must lead to a call within that part. Cross attention with nothing to read lies beside self-attention
    that is called.
    """

    def refuse(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        refuse_weights(type(part).__name__, kwargs.get("output_attentions") or configs.asks_for_weights())

    for _, part in models_within(network):
        undo.callback(part.register_forward_pre_hook(refuse, with_kwargs=True).remove)
    settings = [setting for config in configs_within(network) for setting in vars(config).items()]
    drops_layers = any(name.endswith("layerdrop") and value for name, value in settings)

    def watch(part: nn.Module, within: list[nn.Module]) -> None:
        def see(part: nn.Module, args: tuple[Any, ...], output: object) -> None:
            # In a compiled graph nothing can be counted; with its own settings the model calls its own function.
            if torch.compiler.is_compiling() or not configs.in_effect:
                return
            if not called.isdisjoint(within):
                hook.remove()
            elif not (part is network and part.training and drops_layers):
                raise AbbeError(
                    f"unsupported: {type(part).__name__} ran without the attention function of {modules[within[0]]}, "
                    "so a tap or swap has no effect there; load the model anew, and let no other library replace its "
                    "attention"
                )

        hook = part.register_forward_hook(see)
        undo.callback(hook.remove)

    parts: dict[nn.Module, list[nn.Module]] = {}
    for module, name in modules.items():
        for part in {module, network.get_submodule(name.rpartition(".")[0]), network}:
            parts.setdefault(part, []).append(module)
    for part, within in parts.items():
        watch(part, within)


def models_within(network: nn.Module) -> list[tuple[str, nn.Module]]:
    from transformers import PreTrainedModel  # slow to import

    return [(name, part) for name, part in network.named_modules() if isinstance(part, PreTrainedModel)]


def detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


# -- Pickling a model that is tapped or swapped -----------------------------------------------------------------------
# torch.save, pickle and deepcopy ask the object itself how to write it. For the duration of a session the network
# answers with a copy that shares all tensors, but has the settings and hooks of the plain model. Under a tap that is
# all: the file holds the model as it was before and will be after. Under a swap `reduced` adds the plan.

Reduced = Callable[[nn.Module, nn.Module], Any]  # of a model and its copy: what __reduce__ returns
_ANSWERS = ("__reduce_ex__", "__deepcopy__", "save_pretrained")
_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip


def answer_pickle(
    models: Sequence[nn.Module], configs: PrivateConfigs | None, undo: ExitStack, reduced: Reduced | None = None
) -> None:
    """Let these models (a network and those within it) answer pickle and deepcopy, until `undo` closes."""

    def written(below: Callable[[Any], Any] | None, model: nn.Module, protocol: Any) -> Any:
        with _silent(models), nullcontext() if configs is None else configs.removed(), without_hooks(models[0]):
            if below is not None:  # of a session that this one lies on; its plan is that of the uppermost
                return below(protocol)
            # deepcopy treats everything in its memory as copied, so tensors are shared.
            plain = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
        return plain.__reduce_ex__(protocol) if reduced is None else reduced(model, plain)

    def copied(below: object, model: nn.Module, memory: dict[int, Any]) -> Any:
        # A full copy, which a swap refuses by name: it must not silently compute with softmax.
        with _silent(models):
            return copy.deepcopy(model, memory)

    for model in models:
        for name, answer in (("__reduce_ex__", written), ("__deepcopy__", copied)):
            put(model.__dict__, name, partial(answer, model.__dict__.get(name), model), undo)


@contextmanager
def _silent(models: Sequence[nn.Module]) -> Iterator[None]:
    answers = [
        (model, {name: model.__dict__.pop(name) for name in _ANSWERS if name in model.__dict__}) for model in models
    ]
    try:
        yield
    finally:
        for model, held in answers:
            model.__dict__.update(held)


def without_hooks(network: nn.Module, some: Sequence[object] = ()) -> AbstractContextManager[None]:
    """Without abbe's hooks, or some of them.

    The dictionaries themselves are restored: handles that remove a hook refer to them.
    """
    held = [(module, name, getattr(module, name)) for module in network.modules() for name in _HOOKS]
    named = [(number, hook) for _, _, hooks in held for number, hook in hooks.items()]
    if not some:
        some = [hook for _, hook in named if str(getattr(hook, "__module__", "")).startswith("abbe.")]
    ours = {number for number, hook in named if any(hook is one for one in some)}
    return changed(
        (module, name, type(hooks)((key, hook) for key, hook in hooks.items() if key not in ours))
        for module, name, hooks in held
    )
