"""Calls of attention within one network that is not from transformers, seen where torch hands them over.

What is special: a `TorchFunctionMode` is active while modules of the network run, in the thread that runs them; nothing
is patched, and other networks and threads compute as always. It sees `F.scaled_dot_product_attention` and
`F.multi_head_attention_forward`, which `nn.MultiheadAttention` calls (the fused kernels of torch, which hide queries
and keys, are off while any mode is active), and `abbe.attention` hands itself over. The layer is the innermost module
that runs, so recomputation for gradient checkpointing is seen, too.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType, FunctionType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..._attention.attend import attended, handed_over
from ..._attention.engine import Inputs, Rule
from ..._errors import AbbeError
from ...normalizers import Normalizer, Softmax
from .._network import changed
from .call import Attend, HeadGroup, Keywords, RawCall
from .modules import CROSS_INPUTS

_SEEN = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)
# torch's own function, which does not hand itself over again.
_multi_head = FunctionType(
    F.multi_head_attention_forward.__code__,
    F.multi_head_attention_forward.__globals__ | {"has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
HEADS = ("num_heads", "n_heads", "n_head", "heads", "num_attention_heads", "nhead")


class Running(NamedTuple):
    """A module whose forward runs, and its arguments."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def input(self, queries: int) -> Tensor | None:
        """The input states, (batch, queries, features), if they can be told."""
        first = next((x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor)), None)
        if first is None or not 2 <= first.dim() <= 3 or not first.is_floating_point():
            return None
        if first.dim() == 2:
            first = first[None]
        elif isinstance(self.module, nn.MultiheadAttention) and not self.module.batch_first:
            first = first.transpose(0, 1)
        return first.detach() if first.shape[1] == queries else None

    def kind(self, call: RawCall) -> Literal["self", "cross"]:
        """Whether the keys are of another stack: by the arguments, or because there are fewer or more keys."""
        if isinstance(self.module, nn.MultiheadAttention):
            given = dict(zip(("query", "key"), self.args, strict=False)) | self.kwargs
            return "self" if given.get("key") is given.get("query") else "cross"
        given = dict(zip(inspect.signature(self.module.forward).parameters, self.args, strict=False)) | self.kwargs
        apart = call.query.shape[-2] not in (1, call.key.shape[-2]) and not call.causal
        return (
            "cross"
            if apart or any(given.get(name) is not None for name in (*CROSS_INPUTS, "context", "memory"))
            else "self"
        )


class Hook:
    """A hook of abbe. A copy of the network has one that does nothing, or what `in_copy` does."""

    def __init__(self, act: Callable[..., None] | None = None, in_copy: Callable[..., None] | None = None) -> None:
        self._act, self._in_copy = act, in_copy

    def __call__(self, *args: Any) -> None:
        if self._act is not None:
            self._act(*args)

    def __reduce__(self) -> tuple[type[Hook], tuple[Any, ...]]:
        return Hook, (self._in_copy, self._in_copy)


class Interception:
    """Sends the calls of attention within a network to `attend`, from `open` on.

    `begin` and `end` are called around a pass: when a module starts while none runs, with its path and keyword
    arguments, and when it has returned, with its output, which is None after an exception.
    """

    def __init__(
        self, network: nn.Module, attend: Attend, begin: Callable[[str, dict[str, Any]], None],
        end: Callable[[str, Any], None],
    ) -> None:  # fmt: skip
        self.network, self._attend, self._begin, self._end = network, attend, begin, end
        self.paths = {module: path or type(network).__name__ for path, module in network.named_modules()}
        self._thread = threading.local()
        self.hooks: tuple[Hook, ...] = ()

    def open(self, undo: ExitStack, in_copy: Callable[..., None] | None = None) -> None:
        """Watch until `undo` closes; `in_copy` is what hooks do in a copy of the network."""
        undo.callback(self._leave)
        self.hooks = enter, leave = Hook(self._enter, in_copy), Hook(self._exit)
        for module in self.paths:
            if not isinstance(module, torch.jit.ScriptModule):
                undo.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                # First, so that of two interceptions the inner one ends first.
                undo.callback(module.register_forward_hook(leave, prepend=True, always_call=True).remove)

    @property
    def running(self) -> Running | None:
        """The innermost module that runs in this thread."""
        return self._stack[-1] if self._stack else None

    def run(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a module's forward alone, with its calls seen."""
        self._enter(module, args, kwargs)
        try:
            return module.forward(*args, **kwargs)
        finally:
            self._exit(module, args, None)

    @property
    def paused(self) -> bool:
        """Whether a call is being computed in this thread."""
        return bool(getattr(self._thread, "paused", False))

    # -- Where modules begin and end

    @property
    def _stack(self) -> list[Running]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        stack: list[Running] = self._thread.stack
        return stack

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self.network and self._stack:
            self._leave()  # an earlier pass was interrupted from the keyboard, for which torch calls no hooks
        self._stack.append(Running(module, args, kwargs))
        if len(self._stack) == 1:
            self._thread.mode, self._thread.before, self._thread.paused = _Mode(self), handed_over.to, False
            self._thread.mode.__enter__()
            handed_over.to = self.attention
            self._begin(self.paths.get(module, ""), kwargs)

    def _exit(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not any(running.module is module for running in self._stack):
            return  # another hook failed before ours
        while self._stack[-1].module is not module:
            self._stack.pop()
        if len(self._stack) == 1:
            self._leave()
            self._end(self.paths.get(module, ""), output)
        else:
            self._stack.pop()

    def _leave(self) -> None:
        if self._stack:
            self._stack.clear()
            self._thread.mode.__exit__(None, None, None)
            handed_over.to = self._thread.before

    # -- What is seen, in one form

    def attention(self, rule: Rule[Normalizer], inputs: Inputs, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
        """A call of `abbe.attention`, whose last query sits at the last key."""
        if not self.is_ours():
            with changed([(handed_over, "to", self._thread.before)]):
                return (
                    attended(rule, inputs, return_weights)
                    if handed_over.to is None
                    else handed_over.to(rule, inputs, return_weights)
                )
        given, queries, keys, heads = inputs[:3], inputs.q.shape[-2], inputs.k.shape[-2], inputs.q.shape[-3]
        q, k, v = (x[None] if x.dim() == 3 else x for x in given)
        mask, causal, window = inputs.mask, rule.causal, rule.window
        if window is not None or (causal and (mask is not None or queries != keys or queries == 1)):
            ahead = torch.arange(keys, device=q.device) - torch.arange(keys - queries, keys, device=q.device)[:, None]
            near = ahead < keys if window is None else ahead.abs() < window
            near = near & (ahead <= 0) if causal else near
            mask, causal = near if mask is None else mask & near, False
        bias = _folded_table(inputs.bias, q, heads)
        options = Keywords(rule.scale, rule.dropout, causal, rule.softcap, inputs.sink, bias, window)
        call, weights = self._call((q, k, v), heads, mask, causal, options), list[Tensor]()
        softmax = type(rule.normalizer) is Softmax and rule.normalizer.temperature == 1

        def own() -> Tensor:
            result = attended(rule, inputs._replace(**_as_given(call, given)), return_weights)
            if isinstance(result, tuple):
                weights.append(result[1])
                return _by_query(result[0], call)
            return _by_query(result, call)

        every = None if softmax else (HeadGroup("", tuple(range(heads)), rule.normalizer),)
        call = call._replace(own=own, rule=every)
        out = self._answer(call, inputs.q)
        if not return_weights:
            return out
        return out, weights[0] if weights else self._weights(call).reshape(*inputs.q.shape[:-1], keys)

    def scaled_dot_product(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """A call of torch's function, whose first query sits at the first key."""
        given = query, key, value
        if any(x.is_nested for x in given):
            raise AbbeError(f"unsupported: {self._where()} attends with nested tensors; give padded ones and a mask")
        queries, keys, heads = query.shape[-2], key.shape[-2], self._heads(query)
        mask, causal = attn_mask, is_causal and attn_mask is None
        if causal and not 1 < queries <= keys:
            mask, causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(), False
        options = Keywords(query.shape[-1] ** -0.5 if scale is None else float(scale), float(dropout_p), causal)
        call = self._call(given, heads, mask, causal, options)

        def own() -> Tensor:
            q, k, v = _as_given(call, given).values()
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return _by_query(out, call)

        return self._answer(call._replace(own=own), query)

    def multi_head(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """A call of `nn.MultiheadAttention`: to give weights back it computes by hand, else by the function above."""
        given = _MULTI_HEAD.bind(*args, **kwargs)
        given.apply_defaults()
        of = given.arguments
        by_hand = _ByHand(self, of["num_heads"], of["dropout_p"] if of["training"] else 0.0)
        with by_hand:
            output, weights = _multi_head(*args, **kwargs)
        if weights is not None and by_hand.replaced is not None:
            every = self._weights(by_hand.replaced)
            weights = (every.mean(1) if of["average_attn_weights"] else every).reshape(weights.shape)
        return output, weights

    def _call(
        self, given: tuple[Tensor, Tensor, Tensor], heads: int, mask: Tensor | None, causal: bool, options: Keywords
    ) -> RawCall:
        """The call with four dims everywhere; refused if it is of another form."""
        module, where = self._stack[-1].module, self._where()
        grouped = given[0].dim() > 3
        batches = {x.shape[: -3 if grouped else -2] for x in given}
        key_heads = [x.shape[-3] if grouped else heads for x in given[1:]]
        if len(batches) > 1 or key_heads[0] != key_heads[1] or heads % key_heads[0]:
            raise AbbeError(
                f"unsupported: {where} attends with tensors of shapes {[tuple(x.shape) for x in given]}; give query, "
                "key and value the same batch, and key and value the same heads"
            )
        query, key, value = (_folded(x, n) for x, n in zip(given, (heads, *key_heads), strict=True))
        return RawCall(where, module, query, key, value, _folded_table(mask, given[0], heads), causal, options)

    def is_ours(self) -> bool:
        """Whether the innermost module that runs is one of this network, as the frames of Python say.

        Another network may run within a pass, or after one that was interrupted from the keyboard, for which torch
        calls no hooks. Recomputation of a function for gradient checkpointing would not be seen, so that is refused.
        """
        frame: FrameType | None = sys._getframe(1)
        in_function = False
        while frame is not None and frame.f_code is not Interception.run.__code__:
            if frame.f_code is nn.Module._call_impl.__code__:
                if not self._stack or frame.f_locals["self"] is not self._stack[-1].module:
                    return False
                break
            in_function = in_function or frame.f_globals.get("__name__") == "torch.utils.checkpoint"
            frame = frame.f_back
        if frame is not None and in_function:
            raise AbbeError(
                f"unsupported: {self._where()} checkpoints a function, whose recomputation is not seen: checkpoint a "
                "module"
            )
        return frame is not None

    def _where(self) -> str:
        module = self._stack[-1].module
        return f"{type(self.network).__name__} ({self.paths.get(module, type(module).__name__)})"

    def _heads(self, query: Tensor) -> int:
        """Of three dims, the first is the batch, or, as in older code, batch x heads if the module says how many."""
        if query.dim() > 3:
            return query.shape[-3]
        stated = stated_heads(self._stack[-1].module) or 1
        return stated if query.dim() == 3 and len(query) % stated == 0 else 1

    def _answer(self, call: RawCall, query: Tensor) -> Tensor:
        out = self._alone(call)
        return out.transpose(1, 2).reshape(*query.shape[:-1], out.shape[-1])

    def _weights(self, call: RawCall) -> Tensor:
        """(batch, heads, queries, keys): the output of the layer if its values were the unit vectors."""
        unit = torch.eye(call.key.shape[-2], dtype=call.value.dtype, device=call.value.device)
        options = replace(call.options, dropout=0.0)
        unit = unit.expand(*call.key.shape[:2], -1, -1)
        return self._alone(call._replace(value=unit, options=options, again=True)).transpose(1, 2)

    def _alone(self, call: RawCall) -> Tensor:
        """What `attend` makes of a call, without seeing what it computes itself."""
        state = self._thread
        with changed([(handed_over, "to", state.before), (state, "paused", True)]):
            return self._attend(call)


class _Mode(TorchFunctionMode):
    def __init__(self, interception: Interception) -> None:
        super().__init__()
        self._interception = interception

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        seen = self._interception
        if func in _SEEN and not seen.paused and seen.is_ours():
            func = seen.scaled_dot_product if func is F.scaled_dot_product_attention else seen.multi_head
        return func(*args, **(kwargs or {}))


class _ByHand(TorchFunctionMode):
    """Sees `nn.MultiheadAttention` compute with weights: q scaled, its product with k, softmax, the product with v."""

    def __init__(self, interception: Interception, heads: int, dropout: float) -> None:
        super().__init__()
        self.replaced: RawCall | None = None  # the call, if its output is not the network's own
        self._interception, self._heads, self._dropout = interception, heads, dropout
        self._scale, self._mask = 1.0, None
        self._parts: list[Tensor] = []  # query and key, (batch * heads, ., width)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return self._interception.scaled_dot_product(*args, **(kwargs or {}))
        if func is torch.Tensor.mul and isinstance(args[1], float):
            self._parts, self._scale = [self._split(args[0])], args[1]
            return func(self._joined(self._parts[0]), args[1])
        if func in (torch.bmm, torch.baddbmm) and len(self._parts) == 1:
            self._parts.append(self._split(args[-1].mT))
            self._mask = args[0] if func is torch.baddbmm else None
            return func(*args[:-1], self._joined(self._parts[1]).mT)
        if func is torch.bmm and len(self._parts) == 2:
            return self._second(*args)
        return func(*args, **(kwargs or {}))

    def _second(self, weights: Tensor, value: Tensor) -> Tensor:
        (query, key), value = self._parts, self._split(value)
        mask = None if self._mask is None else _folded_table(self._mask, weights, self._heads)
        used = []

        def own() -> Tensor:
            used.append(True)
            return _by_query(torch.bmm(weights, self._joined(value)), call)

        call = self._interception._call(
            (query, key, value), self._heads, mask, False, Keywords(self._scale, self._dropout)
        )
        call = call._replace(own=own)
        out = self._interception._alone(call)
        self.replaced = None if used else call
        return self._joined(out.transpose(1, 2))

    def _split(self, states: Tensor) -> Tensor:
        return states.view(-1, self._heads, *states.shape[1:])

    def _joined(self, states: Tensor) -> Tensor:
        return states.reshape(-1, *states.shape[2:])


def stated_heads(module: nn.Module) -> int | None:
    """How many query heads a module says that it has."""
    return next((n for name in HEADS if isinstance(n := getattr(module, name, None), int) and n > 0), None)


def _folded(states: Tensor, heads: int) -> Tensor:
    """(batch, heads, length, width); batch and heads may be missing, or the batch may have several dims."""
    return states if states.dim() == 4 else states.reshape(-1, heads, *states.shape[-2:])


def _folded_table(table: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """A mask or bias that broadcasts to (batch, heads, queries, keys), from one that did with the query's dims."""
    if table is None or query.dim() == 4:
        return table if table is None else table[(None,) * (4 - table.dim())]
    return table.expand(*query.shape[:-2], *table.shape[-2:]).reshape(-1, heads, *table.shape[-2:])


def _as_given(call: RawCall, given: Sequence[Tensor]) -> dict[str, Tensor]:
    """Query, key and value as they were given, from those of the call, which gradients shall reach."""
    parts = (call.query, call.key, call.value)
    return {name: part.reshape(x.shape) for name, part, x in zip("qkv", parts, given, strict=True)}


def _by_query(output: Tensor, call: RawCall) -> Tensor:
    """(batch, queries, heads, value width)."""
    return output.reshape(*call.query.shape[:3], output.shape[-1]).transpose(1, 2)
