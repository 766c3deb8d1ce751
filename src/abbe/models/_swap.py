"""swap(model, what): another normalizer in a real model, for a time.

What is special: only the map from logits to weights changes; masks, windows, soft caps, sinks and biases stay as they
are, and a cache works. The swap is a named attention function for this one model, registered with transformers only
while the swap lasts; no module of transformers is patched.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from .._attention.engine import are_finite, can_read
from .._errors import AbbeError
from ..normalizers import Normalizer, Softmax, kernels_from, normalizer, step_attention, usual_specs
from ._network import checked_network
from ._plan import HeadGroup, Plan, What, as_module, make_groups, needs_order
from ._own import session_of
from ._session.call import AttentionCall, MaskPolicy, RawCall, attention_function, model_attention, normalized_attention
from ._session.modules import CARRIED_NAME, LOADED_PREFIX, SWAP_PREFIX

Listener = Callable[[AttentionCall, Callable[[Tensor], Tensor]], object]
ATTRIBUTE = "abbe_normalizers"  # of the network; holds the normalizers during the swap
_FAILURE = (
    "check failed: softmax swapped in changes the output of {model} by {error} of its standard deviation "
    "(allowed {limit})"
)


class _AsAnyOther(Softmax):
    """Softmax that attention() computes like any other normalizer; for Softmax itself it calls torch's kernel."""


def swap(model: object, what: What, *, inputs: object = None) -> Swap:
    """Give a model other normalizers, from now until `restore` or a block's end.

    Masks, windows, soft caps, sinks, biases and caches stay as they are. A head that no pattern names keeps the model's
    own attention. A pattern is LAYERS or LAYERS.heads.HEADS: LAYERS is "*", "layers.0,2,5-7" (attention modules in the
    order in which the network holds them) or a glob of module paths, HEADS is "0,4" or "2-5".

    Args:
        model: a transformers model, or what `load` returns.
        what: a spec; a Normalizer, which all layers share; "file:PATH" of a file that `Swap.save` wrote; or a mapping
            from patterns to specs or Normalizers, of which the first that names a head wins, in one line
            "PATTERN=SPEC; PATTERN=SPEC".
        inputs: of a network that is not from transformers: a tensor, a tuple or a mapping of the arguments of a pass,
            which shows its layers; needed if one of them does not state its number of heads.

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
    return Swap(model, what, inputs)


class Swap:
    """A model with other normalizers; `restore`, or leaving the `with` block, gives it its own attention back.

    Args:
        model: a transformers model, or what `load` returns.
        what: as for `swap`.
        inputs: as for `swap`.

    Attributes:
        network: the transformers model.

    Examples:
        >>> with abbe.swap(abbe.load("embedded"), "entmax:alpha=1.5,learn=true") as swapped:
        ...     learned = sum(parameter.numel() for parameter in swapped.parameters())
        >>> learned  # one alpha per head
        48
    """

    def __init__(self, model: object, what: What, inputs: object = None) -> None:
        self.network = checked_network(model, "swap")
        self._plan = Plan(self.network, what, inputs)
        self._groups = {layer.module: groups for layer, groups in self._plan.by_layer.items()}
        self._trial_groups: dict[nn.Module, tuple[HeadGroup, ...]] = {}  # softmax everywhere, for the check
        self._listeners: list[Listener] = []
        self._session = session_of(self.network, SWAP_PREFIX)
        normalizers = as_module(self._plan.by_layer).train(self.network.training)
        self._learning = [parameter for parameter in normalizers.parameters() if parameter.requires_grad]
        modules = {layer.module: layer.path for layer in self._plan.by_layer}
        self._session.open(self._attend, modules, part=(ATTRIBUTE, normalizers))

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
        return as_module(self._plan.by_layer).parameters()

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
    def check(self, *args: Any, **inputs: Any) -> float:
        """Prove on these inputs that with softmax swapped in everywhere the model's own output results.

        The beginning of a text without padding is tried with padding, too. Listeners are not called. Also learns the
        output projections, for later calls of listeners.

        Args:
            args: those of the forward pass of a network that is not from transformers.
            inputs: those of the model's forward pass, by name.

        Returns:
            The largest difference over the standard deviation of the output; rounding leaves about 1e-6 in float32.

        Raises:
            AbbeError: the difference is larger than rounding explains.
        """
        self._check_active()
        softmax = make_groups(_AsAnyOther(), list(self._plan.by_layer))
        self._trial_groups = {layer.module: groups for layer, groups in softmax.items()}
        return self._session.check(inputs, _FAILURE, *args)

    def _check_active(self) -> None:
        if not self._session.is_open:
            raise AbbeError("this swap was restored already; call swap again")

    def _attend(self, raw: RawCall) -> Tensor:
        """The layer's attention with the normalizers of its heads; during the check with softmax in all of them."""
        trial = self._session.trial
        groups = self._groups_of(raw)
        if raw.mask is None and not raw.causal and raw.query.shape[-2] > 1:  # whatever the module declares
            _refuse_order(groups, f"but {raw.where} shows all keys")
        if self._learning and not torch.compiler.is_compiling():
            self._say_if_frozen(raw)
        if self._listeners and trial is None and not raw.again:
            _, call = self._session.read(raw)
            for listener in self._listeners:
                listener(call.for_measures(), partial(swapped_weights, call, groups))
        with kernels_from(KERNELS_FROM):
            output = swapped_attention(raw, groups)
        if trial is not None and not raw.again:
            trial.see(*self._session.read(raw), output)
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

    def _groups_of(self, raw: RawCall) -> tuple[HeadGroup, ...]:
        groups = (self._groups if self._session.trial is None else self._trial_groups).get(raw.module)
        where, heads = raw.where, raw.query.shape[1]
        if groups is None:
            raise AbbeError(
                f"{where} is not part of the swapped model, but of a copy; swap the copy itself"
                if raw.own is None
                else f"{where} attends, which its class does not show: give inputs=..., the arguments of a pass"
            )
        expected = sum(len(group.heads) for group in groups)
        if heads != expected:
            raise AbbeError(f"unsupported: {where} says that it has {expected} heads, but attends with {heads}")
        return groups


# -- Attention with other normalizers ---------------------------------------------------------------------------------

# One token has this many logits in a text of some hundred, and generation calls often: loading the kernels pays off.
KERNELS_FROM = 1 << 11


def swapped_attention(call: RawCall, groups: Sequence[HeadGroup]) -> Tensor:
    if len(groups) == 1 and groups[0].normalizer is not None:
        if _is_plain_step(call):
            output = _one_query(groups[0].normalizer, call.query, call.key, call.value, call.mask, call.options.scale)
            # NaN may come from a masked key, which counts as absent there; reading the output costs little.
            if call.mask is None or are_finite(output):
                return output
        return normalized_attention(groups[0].normalizer, call)
    own: Tensor | None = None
    if any(group.normalizer is None for group in groups):
        # All heads, as in the model: the result for some heads alone would be rounded differently.
        own = model_attention(call)
        if len(groups) == 1:
            return own
    parts = [_of_group(call, group, own) for group in groups]
    order = [head for group in groups for head in group.heads]
    together = torch.cat(parts, 2)
    return together if order == sorted(order) else together[:, :, sorted(range(len(order)), key=order.__getitem__)]


def _of_group(call: RawCall, group: HeadGroup, own: Tensor | None) -> Tensor:
    where, module, query, key, value, mask, causal, options = call
    heads = group.heads
    if group.normalizer is None and own is not None:
        return _take(own, heads, 2)
    shared = key_heads(heads, query.shape[1] // key.shape[1])
    query, key, value = _take(query, heads, 1), _take(key, shared, 1), _take(value, shared, 1)
    sink = None if options.sink is None else _take(options.sink, heads, 0)
    options = replace(options, sink=sink, position_bias=_of_heads(options.position_bias, heads))
    part = RawCall(where, module, query, key, value, _of_heads(mask, heads), causal, options)
    return normalized_attention(group.normalizer or "softmax", part)


def _is_plain_step(call: RawCall) -> bool:
    """Whether this is one token with nothing special, as in most steps of a generation."""
    query, mask, options = call.query, call.mask, call.options
    if query.shape[-2] != 1 or query.dtype not in (torch.float32, torch.float64) or torch.is_grad_enabled():
        return False
    bare = options.softcap is None and options.sink is None and options.position_bias is None and not options.dropout
    plain_mask = mask is None or (mask.dtype == torch.bool and can_read(query))
    return bare and plain_mask and not torch.is_autocast_enabled(query.device.type)


def _one_query(
    normalizer: Normalizer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """As normalized_attention, in a third of the calls: with one query they cost more than the arithmetic."""
    if mask is None and (output := step_attention(normalizer, query, key, value, scale)) is not None:
        return output
    batch, heads, _, width = query.shape
    key, value = key.flatten(0, 1), value.flatten(0, 1)
    folded = query.reshape(len(key), -1, width)
    scores = torch.baddbmm(folded.new_empty(1), folded, key.mT, beta=0, alpha=scale).view(batch, heads, 1, -1)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -math.inf)
    weights = normalizer(scores).view(len(key), -1, key.shape[1])
    return torch.bmm(weights, value).view(batch, 1, heads, -1)


def swapped_weights(call: AttentionCall, groups: Sequence[HeadGroup], queries: Tensor) -> Tensor:
    """(heads, len(queries), keys): the weights of batch element 0, without gradients and before dropout."""
    with torch.no_grad():
        tensors = {name: getattr(call, name) for name in ("query", "key", "value", "mask", "position_bias")}
        first: dict[str, Any] = {name: tensor[:1] for name, tensor in tensors.items() if tensor is not None}
        logits = replace(call, **first).logits(queries, sink=True)[0]
        weights = torch.empty_like(logits)
        for group in groups:
            normalizer = group.normalizer or Softmax()
            weights[list(group.heads)] = normalizer(logits[list(group.heads)])
        return weights[..., -call.key.shape[-2] :]


def _refuse_order(groups: Sequence[HeadGroup], why: str) -> None:
    for group in groups:
        if needs_order(group.normalizer):
            raise AbbeError(f"{group.normalizer} needs keys in causal order, {why}")


def key_heads(heads: tuple[int, ...], shared_by: int) -> tuple[int, ...]:
    """The key heads for these query heads: each once if all serve equally many, else one per query head."""
    each = [head // shared_by for head in heads]
    distinct = sorted(set(each))
    return tuple(distinct if len({each.count(head) for head in distinct}) == 1 else each)


def _of_heads(table: Tensor | None, heads: tuple[int, ...]) -> Tensor | None:
    """The part of a mask or bias (batch, 1 or heads, queries, keys)."""
    return table if table is None or table.shape[1] == 1 else _take(table, heads, 1)


def _take(states: Tensor, heads: tuple[int, ...], axis: int) -> Tensor:
    """Some heads; a view where they are neighbours."""
    if heads[-1] - heads[0] + 1 == len(heads):
        return states.narrow(axis, heads[0], len(heads))
    return states.index_select(axis, torch.tensor(heads, device=states.device))


GROUPS = "abbe_groups"  # of an attention module that was loaded with a plan: the normalizers of its heads


def attention_names() -> dict[str, str]:
    """The names for transformers' attn_implementation, such as "abbe:entmax-1.5", each with its spec.

    Returns:
        Specs by name.

    Examples:
        >>> abbe.models.attention_names()["abbe:entmax-1.5"]
        'entmax:alpha=1.5'
    """
    return {f"{LOADED_PREFIX}{name}": spec for name, spec in usual_specs().items()}


def register_attention_names() -> None:
    """Make the names of `attention_names` known to transformers; importing both packages does it.

    Examples:
        >>> abbe.models.register_attention_names()
        >>> from transformers import AttentionInterface
        >>> "abbe:sparsemax" in AttentionInterface()
        True
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    # torch.compile cannot follow transformers' table of models.
    is_eager = torch.compiler.assume_constant_result(_is_eager)  # type: ignore[no-untyped-call]
    make_mask = MaskPolicy(set(), (), lambda config: is_eager(type(config))).make_mask
    attends = {name: _attend_with(spec) for name, spec in attention_names().items()}
    for name, attend in (attends | {CARRIED_NAME: _attend_with_plan}).items():
        function = attention_function(
            lambda module: type(module).__name__,
            lambda module, query, mask, options: mask is not None and _is_lower_triangle(mask),
            attend,
        )
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, make_mask)


def _is_lower_triangle(mask: Tensor) -> bool:
    """Whether a mask is causal and nothing else, for which attention() does half the work."""
    queries, keys = mask.shape[-2:]
    if mask.dtype != torch.bool or queries != keys or queries == 1:
        return False
    return bool((mask == torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()).all())


def _is_eager(config: type[Any]) -> bool:
    """Whether transformers computes models with this class of config eagerly unless told otherwise."""
    from transformers import MODEL_MAPPING

    known = next((MODEL_MAPPING[kind] for kind in config.__mro__ if kind in MODEL_MAPPING), None)
    model = known[0] if isinstance(known, (tuple, list)) else known
    return model is not None and not model._supports_sdpa


def _attend_with(spec: str) -> Callable[[RawCall], Tensor]:
    return lambda call: _attend(call, (HeadGroup("*", tuple(range(call.query.shape[1])), _cached_normalizer(spec)),))


def _attend_with_plan(call: RawCall) -> Tensor:
    """Attention with the normalizers that the module was loaded with."""
    groups = call.module.__dict__.get(GROUPS)
    if groups is None:
        raise AbbeError(
            f"{call.where} has no plan: load the model with from_pretrained, from the folder that `abbe export` wrote"
        )
    for group in groups:
        if group.normalizer is not None:
            group.normalizer.to(call.query.device)  # normalizers are no part of the network, which may have moved
    return _attend(call, groups)


def _attend(call: RawCall, groups: tuple[HeadGroup, ...]) -> Tensor:
    if not call.in_order:
        _refuse_order(groups, f"and {call.where} is an encoder's or a cross attention")
    elif call.mask is None and call.query.shape[-2] > 1:
        raise AbbeError(
            f"unsupported: {call.where} came without a mask, so later keys would be seen; use abbe.swap instead"
        )
    with kernels_from(KERNELS_FROM):
        return swapped_attention(call._replace(mask=None) if call.causal else call, groups)


_cached_normalizer = lru_cache(maxsize=256)(normalizer)
