"""Speed of attention over the support, against torch's fused softmax attention in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import abbe

Row = dict[str, object]
Times = Callable[..., list[float]]

HEADS, WIDTH = 4, 64
SPREADS = (0.5, 1.0, 3.0)
SPECS = ("entmax:alpha=1.5", "sparsemax", "entmax:alpha=1.75", "topk:k=32", "topp:p=0.9")
CONTEXTS = (1024, 8192)
MODELS = ("embedded", "smollm2")  # one that was not pulled is left out, with the reason
TOKENS = 1024


def sparse_rows(emit: Callable[[Row], None], best_times: Times, budget: float, lengths: tuple[int, ...]) -> None:
    for length in lengths:
        for spread in SPREADS:
            q, k, v, grad = (torch.randn(1, HEADS, length, WIDTH) for _ in range(4))
            tensors = (q * spread, k, v, grad)
            _attention_rows(emit, best_times, budget, SPECS, tensors, f"{length}, spread {spread:g}")
    for name in MODELS:
        _model_rows(emit, best_times, budget, name)
    for context in CONTEXTS:
        _step_row(emit, best_times, budget, context)


def _attention_rows(
    emit: Callable[[Row], None], best_times: Times, budget: float, specs: Sequence[str], tensors: Sequence[Tensor],
    shape: str,
) -> None:  # fmt: skip
    """Causal, forward and forward with backward."""
    *inputs, grad = tensors
    leaves = [t.clone().requires_grad_() for t in inputs]

    def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def sparse(made: abbe.Normalizer) -> Callable[..., Tensor]:
        return lambda q, k, v: abbe.attention(q, k, v, made, causal=True)

    def both(attend: Callable[..., Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(*leaves), leaves, grad)

    maps = [softmax, *(sparse(abbe.normalizer(spec).requires_grad_(False)) for spec in specs)]
    with torch.no_grad():
        base, *forward = best_times([lambda f=f: f(*inputs) for f in maps], 2 * budget)
    base_both, *whole = best_times([both(f) for f in maps], 2 * budget)
    for spec, seconds, seconds_both in zip(specs, forward, whole, strict=True):
        emit(
            {
                "part": "sparse",
                "name": spec.split(",t=")[0],
                "shape": shape,
                "forward": seconds / base,
                "forward+backward": seconds_both / base_both,
                "density": _density(spec, *inputs),
            }
        )


@torch.no_grad()
def _density(spec: str, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Share of the visible keys that have a weight, in per cent, over 64 queries."""
    queries = torch.linspace(0, q.shape[2] - 1, 64).long()
    visible = torch.arange(k.shape[2]) <= queries[:, None]
    weights = abbe.attention(q[:, :, queries], k, v, spec, mask=visible, return_weights=True)[1]
    return 100 * float((weights != 0).sum() / (visible.sum() * weights.shape[1]))


def _model_rows(emit: Callable[[Row], None], best_times: Times, budget: float, name: str) -> None:
    """Queries, keys and values of a model on 1,024 tokens, with a temperature fitted to each head of three layers."""
    try:
        model: Any = abbe.load(name)
    except abbe.AbbeError as error:
        emit({"part": "sparse", "name": name, "shape": "left out", "reason": str(error)})
        return
    words = abbe.read_text().content[:8192]
    tokens = model.tokenizer(words, return_tensors="pt", truncation=True, max_length=TOKENS).input_ids
    calls: list[Any] = []
    with torch.no_grad(), abbe.tap(model) as tapped:
        tapped.listen(calls.append)
        model.network(input_ids=tokens, use_cache=False)
    layers = (0, len(calls) // 2, len(calls) - 1)
    spec = "entmax:alpha=1.5,learn=false"
    fitted = abbe.calibrate(
        model, normalizer={f"layers.{layer}": spec for layer in layers}, windows=4, held_out=1, progress=False
    ).parameters.to_dicts()
    for layer in layers:
        call = calls[layer]
        q, k, v = (t.detach().clone() for t in (call.query, call.key, call.value))
        q *= call.scale * q.shape[-1] ** 0.5
        t = "/".join(f"{row['value']:.4f}" for row in fitted if row["layer"] == layer and row["parameter"] == "t")
        spec = f"scaled:of=entmax:alpha=1.5,t={t},learn=true"
        _attention_rows(emit, best_times, budget, [spec], (q, k, v, torch.randn_like(q)), f"{name}, layer {layer}")


@torch.no_grad()
def _step_row(emit: Callable[[Row], None], best_times: Times, budget: float, context: int) -> None:
    """One query of 4 heads against a cache of keys and values."""
    query, key, value = (torch.randn(1, HEADS, n, WIDTH) for n in (1, context, context))
    from abbe.normalizers import kernels_from, step_attention

    for spec in SPECS[:3]:
        made = abbe.normalizer(spec)

        def step(made: abbe.Normalizer = made) -> Tensor | None:
            with kernels_from(1):
                return step_attention(made, query, key, value, WIDTH**-0.5)

        base, ours = best_times([lambda: scaled_dot_product_attention(query, key, value), step], budget)
        emit({"part": "sparse", "name": spec, "shape": f"a step at {context}", "ratio": ours / base})
