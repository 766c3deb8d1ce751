"""One model with another attention function for a time: the base of `tap` and `swap`.

What is special: the function is registered with transformers under a private name, for this one model and only while
the session is open; no module of transformers is patched. Settings, registries, hooks and parts are restored by one
stack of undo steps, also when opening fails half-way.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from .call import Attend, Keywords, MaskPolicy, RawCall, attention_function
from .modules import PrivateConfigs, use_text_part
from .reader import (
    CallReader,
    lock,
    models_within,
    refuse_requests_for_weights,
    refuse_silence,
    register,
    save_as_plain,
)
from .selfcheck import (
    Output,
    Trial,
    check_complete,
    check_ready,
    checked_output,
    output_error,
    padded_texts,
    self_check_tolerance,
)

_numbers = count(1)


class Session:
    """A model whose attention modules call another function, from `open` to `close`; at most one session per model.

    Attributes:
        modules: the attention modules with their paths.
        reader: numbers layers and builds AttentionCalls.
        trial: the forward pass of a check in progress, None otherwise.
        error: of the last check, even if it failed.
    """

    def __init__(self, network: Any, prefix: str) -> None:
        self.network = network
        self.modules: dict[nn.Module, str] = {}
        self.reader = CallReader(network)
        self.trial: Trial | None = None
        self.error: float | None = None
        self._name = f"{prefix}{next(_numbers)}"
        self._undo: ExitStack | None = None
        self._watching = False

    @property
    def is_open(self) -> bool:
        return self._undo is not None

    def open(
        self, attend: Attend, modules: dict[nn.Module, str], *, watch: bool = False,
        part: tuple[str, nn.Module] | None = None,
    ) -> None:  # fmt: skip
        """Change the model: these attention modules (with their paths) call `attend`.

        `watch` calls `watch` at once. `part` is a module that the network holds, under that name, meanwhile.
        """
        with ExitStack() as undo, lock:
            self._configs = PrivateConfigs(self.network)
            self.modules = modules
            undo.callback(self._configs.restore)
            self._configs.install(self._name)
            self._policy = MaskPolicy(self._configs.implementations(), modules, self._configs.is_eager)
            called: set[nn.Module] = set()

            def attend_once_seen(raw: RawCall) -> Tensor:
                if not torch.compiler.is_compiling():
                    called.add(raw.module)
                return attend(raw)

            function = attention_function(self._where, self._is_causal, attend_once_seen)
            register(self._name, function, self._policy.make_mask, undo)
            if watch:
                self.reader.watch(modules, undo)
            refuse_requests_for_weights(self.network, self._configs, undo)
            refuse_silence(self.network, modules, called, self._configs, undo)
            if part is not None:
                self.network.add_module(*part)
                undo.callback(delattr, self.network, part[0])
            models = [model for _, model in models_within(self.network)]
            save_as_plain(models, self._configs, undo, None if part is None else part[0])
            # Only now: an error before this point undoes everything.
            self._undo, self._watching = undo.pop_all(), watch

    def close(self) -> None:
        """Restore everything; closing twice does no harm."""
        if self._undo is not None:
            with lock:
                self._undo.close()
            self._undo, self._watching = None, False

    def watch(self) -> None:
        """See inputs and kinds of layers from now on: `reader.read` needs them."""
        if self._undo is not None and not self._watching:
            with lock:
                self.reader.watch(self.modules, self._undo)
            self._watching = True

    def check(self, inputs: dict[str, Any], failure: str) -> float:
        """Compare the model's plain output for these inputs with its output in the session, whose calls go to `trial`.

        The beginning of a text without padding is compared once more, with padding. Returns the largest difference over
        the standard deviation. If it is too large, the error `failure` is raised, with {model}, {error} and {limit}
        filled in.
        """
        check_ready(self.network, inputs)
        model, padded = type(self.network).__name__, padded_texts(self.network, inputs)
        with self._configs.original():
            cases = [(model, inputs, self._plain_output(inputs))]
            if padded is not None:
                # A model that fails on padded texts, or makes NaN of them, has no output to compare with.
                with suppress(Exception):
                    plain = checked_output(self.network, padded)
                    if not bool(plain.main.isnan().any()):
                        cases.append((f"{model} with padding", padded, plain))
        with ExitStack() as undo:
            if not self._watching:
                self.reader.watch(self.modules, undo)
            self.trial = trial = Trial(self.network, self.reader.layers)
            undo.callback(trial.finder.close)
            undo.callback(setattr, self, "trial", None)
            outputs = [checked_output(self.network, given) for _, given, _ in cases]
        check_complete(self.network, self.modules.values(), trial.called, trial.most_keys)
        worst = 0.0
        for (name, given, plain), own in zip(cases, outputs, strict=True):
            error = output_error(self.network, plain, own, given)
            self.error = worst = max(error, worst)
            # The coarsest dtype decides: attention may be computed in another one than the output.
            limit = max(self_check_tolerance(dtype) for dtype in (plain.main.dtype, *trial.dtypes))
            # `not <=`, so that NaN fails.
            if not error <= limit:
                raise AbbeError(failure.format(model=name, error=f"{error:.2g}", limit=f"{limit:g}"))
        return worst

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

    def _where(self, module: nn.Module) -> str:
        return f"{type(self.network).__name__} ({self.modules.get(module, type(module).__name__)})"

    def _is_causal(self, module: nn.Module, query: Tensor, mask: Tensor | None, options: Keywords) -> bool:
        return mask is None and self._policy.is_causal(module, options.is_causal, query.shape[-2])
