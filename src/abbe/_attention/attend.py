"""`attention`: checks its inputs, translates torch's names, and chooses how a call is computed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import normalizers
from .._errors import AbbeError
from ..normalizers import LogNScaling, Normalizer, ScalableSoftmax, Softmax, inside_transform
from .engine import (
    BLOCK_BYTES,
    BlockSize,
    Inputs,
    Rule,
    batch_shape,
    blockwise,
    compute_dtype,
    dense,
    fits_in_one_block,
    full_precision,
    needs_grad,
    score_count,
    without_hidden_keys,
)
from .sparse import DENSE, sparse_attention


class Options(NamedTuple):
    """The options of `attention` under its own names; those with another name in torch come first."""

    mask: Tensor | None = None
    position_bias: Tensor | None = None
    causal: bool = False
    dropout: float = 0.0
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None


def from_sdpa(
    q: Tensor, k: Tensor, options: Options, attn_mask: Tensor | None, is_causal: bool | None, dropout_p: float | None,
    enable_gqa: bool | None,
) -> Options:  # fmt: skip
    """`options` with those under torch's names; an option under both names is an error."""
    if attn_mask is not None:
        options = _with_mask(options, attn_mask)
    if dropout_p is not None:
        _refuse_both("dropout", options.dropout != 0, "dropout_p")
        options = options._replace(dropout=dropout_p)
    if is_causal is not None:
        _refuse_both("causal", options.causal, "is_causal")
        options = _with_causal(options, is_causal, q, k)
    heads, key_heads = q.shape[-3], k.shape[-3]
    if enable_gqa is False and key_heads not in (1, heads):  # torch broadcasts a single head of keys, too
        raise AbbeError(
            f"enable_gqa is False, but query has {heads} heads and key has {key_heads}: omit it, or set it to True"
        )
    return options


def _with_mask(options: Options, attn_mask: Tensor) -> Options:
    """Options with a mask: in a bool one True = attend, as in ours; a floating one is added to the scores."""
    if isinstance(attn_mask, Tensor) and attn_mask.is_floating_point():
        _refuse_both("position_bias", options.position_bias is not None, "a floating attn_mask")
        return options._replace(position_bias=attn_mask)
    _refuse_both("mask", options.mask is not None, "attn_mask")
    if not isinstance(attn_mask, Tensor) or attn_mask.dtype != torch.bool:
        kind = attn_mask.dtype if isinstance(attn_mask, Tensor) else repr(attn_mask)
        raise AbbeError(f"attn_mask must be a bool tensor (True = attend) or a floating one; got {kind}")
    return options._replace(mask=attn_mask)


def _with_causal(options: Options, is_causal: bool, q: Tensor, k: Tensor) -> Options:
    if not is_causal or q.shape[-2] == k.shape[-2]:
        return options._replace(causal=is_causal)
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return options._replace(mask=visible if options.mask is None else options.mask & visible)


def _refuse_both(name: str, is_set: bool, torch_name: str) -> None:
    if is_set:
        raise AbbeError(f"{name} and {torch_name} are two names for one option: give one of them")


SPARSE_FROM = 1 << 16  # scores: below, full rows cost less than the extra calls
SPARSE_QUERIES = 16  # below, the four that are probed for their density would be much of the work
_SOFTMAX = Softmax()


@overload
def attention(
    query: Tensor, key: Tensor, value: Tensor, normalizer: str | Normalizer = ..., *, mask: Tensor | None = ...,
    causal: bool = ..., window: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
    sink: Tensor | float | None = ..., position_bias: Tensor | None = ..., dropout: float = ...,
    return_weights: Literal[False] = ..., attn_mask: Tensor | None = ..., is_causal: bool | None = ...,
    dropout_p: float | None = ..., enable_gqa: bool | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    query: Tensor, key: Tensor, value: Tensor, normalizer: str | Normalizer = ..., *, mask: Tensor | None = ...,
    causal: bool = ..., window: int | None = ..., scale: float | None = ..., softcap: float | None = ...,
    sink: Tensor | float | None = ..., position_bias: Tensor | None = ..., dropout: float = ...,
    return_weights: Literal[True], attn_mask: Tensor | None = ..., is_causal: bool | None = ...,
    dropout_p: float | None = ..., enable_gqa: bool | None = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    normalizer: str | Normalizer = "softmax",
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | float | None = None,
    position_bias: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    attn_mask: Tensor | None = None,
    is_causal: bool | None = None,
    dropout_p: float | None = None,
    enable_gqa: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend with queries to keys and average the values with the normalizer's weights.

    The weights of a query are normalizer(softcap * tanh(scale * query.key / softcap) + position_bias) over its visible
    keys. A query that sees no key gives zeros, with zero gradients. A hidden key (by mask, causal, window, or a
    position_bias of -inf) is an absent key: NaN and infinities in it and its value reach neither output nor gradients.
    In such a call a query that does see NaN or an infinity gives NaN, and passes no gradient on. `attn_mask`,
    `is_causal`, `dropout_p` and `enable_gqa` are the names of torch's scaled_dot_product_attention; give an option
    under one name only.

    float16 and bfloat16 are computed in float32, also under autocast. Memory is O(block x Lk), but O(Lq x Lk) in
    torch.func transforms and, except for softmax and the maps below, in torch.compile. Outside of transforms there
    are second derivatives only if all scores fit in one block of 4 MiB.

    Sparsemax, entmax, top-k (renormalised), top-p and threshold in float32 on a CPU read, keep and differentiate only
    keys with a nonzero weight, unless these are more than half (a quarter without gradients): if they are few, this is
    faster than softmax, and takes 8 bytes per weight, up to 64 MiB or twice the inputs. Their second derivatives, at
    any size, take O(Lq x Lk).

    Args:
        query: (..., H, Lq, D), floating.
        key: (..., Hkv, Lk, D) of the query's dtype. H is a multiple of Hkv, and query head h reads kv head
            h // (H / Hkv), without key and value being repeated. Leading batch dims broadcast.
        value: (..., Hkv, Lk, Dv) of the query's dtype.
        normalizer: a spec such as "entmax:alpha=1.5", or an instance (for learnable parameters: an instance).
        mask: bool, True = attend, broadcastable to (..., H, Lq, Lk).
        causal: hide later keys. The last query sits at the last key: query i has position i + Lk - Lq.
        window: hide keys at a distance of window or more from the query's position; with causal, the last
            `window` keys remain, the query's own included.
        scale: of query.key; D ** -0.5 if not given.
        softcap: bound of the scores, > 0.
        sink: (H,), or a number: the logit of one extra key, before all others, that takes weight and has no value.
        position_bias: floating, broadcastable to (..., H, Lq, Lk), added to the scores; may need gradients.
        dropout: probability in [0, 1) of dropping a weight; the others grow by 1 / (1 - dropout).
        return_weights: also return the weights, before dropout; they take O(Lq x Lk) memory.
        attn_mask: `mask` if it is bool, `position_bias` if it is floating.
        is_causal: `causal` if Lq = Lk; otherwise the first query sits at the first key, which takes a mask of Lq x Lk.
        dropout_p: `dropout`.
        enable_gqa: True has no effect, since heads may always be grouped.

    Returns:
        (..., H, Lq, Dv) in the value's dtype; with return_weights a pair of that and the weights (..., H, Lq, Lk).

    Examples:
        >>> q, k, v = torch.randn(8, 16, 64), torch.randn(2, 16, 64), torch.randn(2, 16, 64)
        >>> abbe.attention(q, k, v, "entmax:alpha=1.5", causal=True).shape
        torch.Size([8, 16, 64])
        >>> abbe.attention(q, k, v, is_causal=True, enable_gqa=True).shape  # as torch's own function
        torch.Size([8, 16, 64])
    """
    q, k, v = query, key, value
    _check_qkv(q, k, v)
    options = Options(mask, position_bias, causal, dropout, window, scale, softcap, sink)
    if attn_mask is not None or is_causal is not None or dropout_p is not None or enable_gqa is not None:
        options = from_sdpa(q, k, options, attn_mask, is_causal, dropout_p, enable_gqa)
    rule, inputs = _checked(q, k, v, normalizer, options)
    if not torch.compiler.is_compiling() and handed_over.to is not None:
        return handed_over.to(rule, inputs, return_weights)
    return attended(rule, inputs, return_weights)


def attended(rule: Rule[Normalizer], inputs: Inputs, return_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    if return_weights:
        out, weights = without_hidden_keys(dense, rule, inputs)
        return out, weights
    return without_hidden_keys(lambda *call: (_output(*call),), rule, inputs)[0]


class _HandedOver(threading.local):
    """To whom calls of `attention` go in this thread: a tap or swap of the network that makes them."""

    to: Callable[[Rule[Normalizer], Inputs, bool], Tensor | tuple[Tensor, Tensor]] | None = None


# Not torch's `handle_torch_function`: it would also run the rest outside of `torch.set_default_device`, and refuse
# classes of tensors that know torch's own functions alone.
handed_over = _HandedOver()


def _output(rule: Rule[Normalizer], inputs: Inputs) -> Tensor:
    """The output, by the cheapest of the equivalent paths."""
    if inside_transform():
        return dense(rule, inputs)[0]
    compiling = torch.compiler.is_compiling()
    small = fits_in_one_block(inputs)
    # The kernel has no second derivatives, and small problems should have them for every normalizer.
    if _kernel_applies(rule, inputs) and (compiling or not small or not needs_grad(*inputs)):
        return _kernel(rule, inputs)
    if (scaled := _with_row_scales(rule, inputs, small)) is not None:
        return _kernel(*scaled)
    if _sparse_pays(inputs, small) and (sparse := sparse_attention(rule, inputs)) is not None:
        return sparse
    return dense(rule, inputs)[0] if compiling or small else blockwise(rule, inputs)


def _blockwise(
    q: Tensor, k: Tensor, v: Tensor, normalizer: str | Normalizer, size: BlockSize | None = None, **options: Any
) -> Tensor:
    """attention() block by block for any problem; for tests and benchmarks."""
    _check_qkv(q, k, v)
    return blockwise(*_checked(q, k, v, normalizer, Options(**options)), size)


def _sparse(
    q: Tensor, k: Tensor, v: Tensor, normalizer: str | Normalizer, dense_from: float = DENSE, **options: Any
) -> Tensor:
    """attention() over the support for any problem; for tests and benchmarks."""
    _check_qkv(q, k, v)
    out = sparse_attention(*_checked(q, k, v, normalizer, Options(**options)), dense_from)
    if out is None:
        raise TypeError(f"{normalizer} has no sparse path here")
    return out


def _sparse_pays(inputs: Inputs, small: bool) -> bool:
    """Whether a kernel beats torch: with gradients unless the problem is small, without from some size on."""
    with_grad = torch.compiler.is_compiling() or needs_grad(*inputs)
    return inputs.q.shape[-2] >= SPARSE_QUERIES and (not small if with_grad else score_count(inputs) >= SPARSE_FROM)


def _kernel_applies(rule: Rule[Normalizer], inputs: Inputs) -> bool:
    """Whether torch's kernel is exact here, and stores no Lq x Lk tensor."""
    q, k, v, mask, bias, sink, _ = inputs
    plain = rule.softcap is None and rule.window is None and sink is None and not rule.dropout
    if _temperature(rule) is None or not plain or q.shape[-1] != v.shape[-1]:
        return False
    if rule.causal and q.shape[-2] > 1:
        # the kernel hides keys before it scales: a scale <= 0 would make its -inf a NaN
        return q.shape[-2] == k.shape[-2] and rule.scale > 0 and mask is None and bias is None
    return _kernel_takes(mask if bias is None else bias, rule, inputs) and (mask is None or bias is None)


def _kernel_takes(extra: Tensor | None, rule: Rule[Normalizer], inputs: Inputs) -> bool:
    """Whether torch's kernel can use this mask or position_bias as it is; only its CPU kernel was examined."""
    if extra is None:
        return True
    batch = extra.shape[:-3]
    if extra.device.type != "cpu" or (batch != batch_shape(inputs) and any(n != 1 for n in batch)):
        return False
    if extra.dtype == torch.bool:  # the kernel makes a float copy of it
        return extra.numel() * inputs.q.element_size() <= BLOCK_BYTES
    return not extra.requires_grad and extra.dtype == inputs.q.dtype and _temperature(rule) == 1


def _temperature(rule: Rule[Normalizer]) -> float | None:
    """The temperature of a plain softmax; None for any other normalizer."""
    return rule.normalizer.temperature if type(rule.normalizer) is Softmax else None


def _with_row_scales(rule: Rule[Normalizer], inputs: Inputs, small: bool) -> tuple[Rule[Normalizer], Inputs] | None:
    """Softmax of queries multiplied by the factor of their row, if that follows from their position; else None."""
    scaling, q = rule.normalizer, inputs.q
    if not isinstance(scaling, LogNScaling | ScalableSoftmax) or scaling._forward_hooks or scaling._forward_pre_hooks:
        return None
    learns = torch.is_grad_enabled() and any(True for _ in scaling.parameters())
    if torch.compiler.is_compiling() or (small and (learns or needs_grad(*inputs))):
        return None  # as for softmax: small problems have second derivatives
    plain = rule._replace(normalizer=_SOFTMAX)
    # Half precision would round the factors. The position of a query only says what it sees if there are as many keys
    # as queries: the single query of a generation step sees all keys, and a mask hides some.
    by_place = rule.causal and q.shape[-2] == inputs.k.shape[-2] and inputs.mask is None and inputs.bias is None
    if not by_place or q.dtype not in (torch.float32, torch.float64) or not _kernel_applies(plain, inputs):
        return None
    scaling._validate(q.new_empty(1).expand(*q.shape[:-1], inputs.k.shape[-2]), None)
    counts = torch.arange(1, q.shape[-2] + 1, device=q.device, dtype=q.dtype)[:, None]
    return plain, inputs._replace(q=q * scaling.scale_of_counts(counts))


def _kernel(rule: Rule[Normalizer], inputs: Inputs) -> Tensor:
    batch, temperature = batch_shape(inputs), _temperature(rule) or 1.0
    # Unless there are four dims, the last one contiguous, torch takes an implementation that stores all scores.
    q, k, v = (t.expand(*batch, *t.shape[-3:]).reshape(math.prod(batch), *t.shape[-3:]) for t in inputs[:3])
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    extra = inputs.mask if inputs.bias is None else inputs.bias
    if extra is not None:
        extra = extra[(None,) * (4 - extra.dim())].flatten(0, -4)
    with full_precision(q):
        out = F.scaled_dot_product_attention(
            q, k, v, extra, is_causal=rule.causal and q.shape[-2] > 1, enable_gqa=q.shape[-3] != k.shape[-3],
            scale=rule.scale / temperature,
        )  # fmt: skip
    return out.reshape(*batch, *out.shape[-3:])


def _checked(
    q: Tensor, k: Tensor, v: Tensor, normalizer: str | Normalizer, options: Options
) -> tuple[Rule[Normalizer], Inputs]:
    mask, position_bias, causal, dropout, window, scale, softcap, sink = options
    heads, queries, width = q.shape[-3:]
    full = torch.Size((*batch_shape(Inputs(q, k, v)), heads, queries, k.shape[-2]))
    _check_extra("mask", mask, full, floating=False)
    _check_extra("position_bias", position_bias, full, floating=True)
    if isinstance(sink, (int, float)):
        sink = q.new_full((heads,), sink, dtype=compute_dtype(q))
    if sink is not None and not (isinstance(sink, Tensor) and sink.shape == (heads,) and sink.is_floating_point()):
        raise AbbeError(
            f"sink must be a number or a floating tensor of shape ({heads},), one per head; got {_named(sink)}"
        )
    _check_numbers(window, scale, softcap, dropout)
    rule = Rule(
        normalizers.normalizer(normalizer), width**-0.5 if scale is None else scale, softcap, causal, window, dropout
    )
    return rule, Inputs(q, k, v, mask, position_bias, sink)


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, t in {"query": q, "key": k, "value": v}.items():
        if not isinstance(t, Tensor) or t.dim() < 3 or not t.is_floating_point():
            raise AbbeError(f"{name} must be a floating tensor (..., heads, length, width); got {_named(t)}")
    got = f"got query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)}"
    if not q.dtype == k.dtype == v.dtype:
        raise AbbeError(f"query, key and value must have one dtype; got {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise AbbeError(f"query and key must have the same last dim, at least 1; {got}")
    if k.shape[-2] != v.shape[-2] or k.shape[-2] == 0:
        raise AbbeError(f"key and value must have the same length (dim -2), at least 1; {got}")
    if k.shape[-3] != v.shape[-3] or k.shape[-3] == 0 or q.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        raise AbbeError(f"key and value must have the same heads (dim -3), and query a multiple of them; {got}")
    try:
        batch_shape(Inputs(q, k, v))
    except RuntimeError:
        raise AbbeError(
            f"the batch dims (all before the last three) of query, key and value must broadcast; {got}"
        ) from None


def _check_extra(name: str, extra: Tensor | None, full: torch.Size, floating: bool) -> None:
    if extra is None:
        return
    kind = "floating" if floating else "bool (True = attend)"
    if not isinstance(extra, Tensor) or not (extra.is_floating_point() if floating else extra.dtype == torch.bool):
        raise AbbeError(f"{name} must be a {kind} tensor; got {_named(extra)}")
    sizes = zip(reversed(extra.shape), reversed(full), strict=False)
    if extra.dim() > len(full) or any(n not in (1, m) for n, m in sizes):
        raise AbbeError(f"{name} must broadcast to (..., H, Lq, Lk) = {tuple(full)}; got shape {tuple(extra.shape)}")


def _check_numbers(window: int | None, scale: float | None, softcap: float | None, dropout: float) -> None:
    if window is not None and (not isinstance(window, int) or window < 1):
        raise AbbeError(f"window must be None or an int >= 1; got {window!r}")
    if scale is not None and not (isinstance(scale, (int, float)) and math.isfinite(scale)):
        raise AbbeError(f"scale must be None or a finite number; got {scale!r}")
    if softcap is not None and not (isinstance(softcap, (int, float)) and 0 < softcap < math.inf):
        raise AbbeError(f"softcap must be None or a finite number > 0; got {softcap!r}")
    if not (isinstance(dropout, (int, float)) and 0 <= dropout < 1):
        raise AbbeError(f"dropout must be a number in [0, 1); got {dropout!r}")


def _named(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
