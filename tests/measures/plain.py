"""The measures the straightforward way: loops over heads, queries and N, straight from the definitions, in float64.

An oracle for the tests, and the baseline of the benchmark. It shares no code with `abbe.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def plain_row(logits: Tensor, weights: Tensor) -> dict[str, float]:
    """Measures of one row of visible keys that do not depend on N; `weights` is not all 0."""
    share = weights / weights.sum()
    return {
        "entropy": -sum(float(p) * math.log(float(p)) for p in share if p > 0),
        "effective_tokens": 1 / float((share**2).sum()),
        "max_weight": float(weights.max()),
        "logit_range": float(logits.max() - logits.min()),
        "sink_mass": float(weights[0]),
        "learned_sink_mass": 1 - float(weights.sum()),
    }


def plain_set(weights: Tensor, vectors: Tensor, chosen: Sequence[int]) -> dict[str, float]:
    """Measures of one set of keys of one row of visible keys: weights (n,), vectors (n, d)."""
    inside = list(chosen)
    outside = [j for j in range(len(weights)) if j not in set(inside)]
    y = weights[:, None] * vectors
    s = y[inside].sum(0)
    values = {
        "top_mass": float(weights[inside].sum()),
        "selected_divergence": _divergence(weights[inside]),
        "distance": sum(float((y[j] - s).norm()) for j in outside),
        "net_distance": float((y[outside].sum(0) - s).norm()),
    }
    values["distance_per_token"] = values["distance"] / len(outside)
    euclidean = [float((y[j] - s).norm()) for j in range(len(weights))]
    cosine = [_cosine_distance(y[j], s) for j in range(len(weights))]
    for suffix, far in (("", euclidean), ("_cosine", cosine)):
        values |= {name + suffix: value for name, value in _retrieval(far, inside, outside).items()}
    return values


def _divergence(weights: Tensor) -> float:
    if float(weights.sum()) == 0:
        return math.nan
    share = weights / weights.sum()
    return math.log(len(share)) + sum(float(p) * math.log(float(p)) for p in share if p > 0)


def _cosine_distance(y: Tensor, s: Tensor) -> float:
    lengths = float(y.norm() * s.norm())
    return 1 - float(y @ s) / lengths if lengths > 0 else 1.0


def _retrieval(far: Sequence[float], inside: Sequence[int], outside: Sequence[int]) -> dict[str, float]:
    nearest, farthest = min(far[j] for j in outside), max(far[i] for i in inside)
    size = len(inside)
    recall = sum(far[i] < nearest for i in inside) / size
    precision = size / (size + sum(far[j] <= farthest for j in outside))
    return {
        "separability": sum(far[i] <= nearest for i in inside) / size,
        "recall": recall,
        "precision": precision,
        "f_score": 2 * recall * precision / (recall + precision),
    }


def least_gap(weights: Tensor, vectors: Tensor, chosen: Sequence[int]) -> float:
    """Smallest difference of a member's distance (either metric) from a stranger's, relative to the length of s.

    Where it is not well above rounding, the counts are not determined in that precision.
    """
    inside = list(chosen)
    outside = [j for j in range(len(weights)) if j not in set(inside)]
    y = weights[:, None] * vectors
    s = y[inside].sum(0)
    euclidean = (y - s).norm(dim=-1) / s.norm()
    cosine = torch.tensor([_cosine_distance(row, s) for row in y], dtype=y.dtype)
    return min(float((far[inside][:, None] - far[outside][None, :]).abs().min()) for far in (euclidean, cosine))


def plain_geometry(rows: Any, orders: Tensor, grid: Sequence[int]) -> dict[str, Tensor]:
    """Measures of the first N keys of the orders (head, query, largest) of `rows`, for every N: (head, query, N).

    NaN where the set would leave no visible key out, or all weights are 0.
    """
    heads, queries, keys = rows.logits.shape
    values: dict[str, Tensor] = {}
    for head in range(heads):
        vectors = rows.vectors[head // (heads // len(rows.vectors))].double()
        for query in range(queries):
            seen = [j for j in range(keys) if rows.logits[head, query, j] != -math.inf]
            weights = rows.weights[head, query, seen].double()
            for i, size in enumerate(grid):
                if size >= len(seen) or not bool((weights != 0).any()):
                    continue
                chosen = [seen.index(int(j)) for j in orders[head, query, :size]]
                for name, value in plain_set(weights, vectors[seen], chosen).items():
                    empty = torch.full((heads, queries, len(grid)), math.nan, dtype=torch.float64)
                    values.setdefault(name, empty)[head, query, i] = value
    return values


@torch.no_grad()
def plain_diagnosis(
    model: Any, input_ids: Tensor, grid: Sequence[int], queries: Sequence[int], seed: int = 0
) -> dict[str, Tensor]:
    """Dispersion, geometry with a random control, and sensitivity of a GPT-2, the way one would write it first.

    The model runs with attn_implementation="eager" and output_attentions=True; the vectors are the values. Returns
    means over the queries: "name" and "name/control", (layer, head) or (layer, head, N).
    """
    generator = torch.Generator().manual_seed(seed)
    values: list[Tensor] = []
    hooks = [
        block.attn.c_attn.register_forward_hook(lambda _module, _inputs, output: values.append(output))
        for block in model.transformer.h
    ]
    try:
        attentions = model(input_ids=input_ids[None], output_attentions=True, use_cache=False).attentions
    finally:
        for hook in hooks:
            hook.remove()
    layers = [
        _plain_layer(
            weights[0], _split_values(output[0], weights.shape[1]), input_ids.tolist(), grid, queries, generator
        )
        for weights, output in zip(attentions, values, strict=True)
    ]
    return {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}


def _split_values(output: Tensor, heads: int) -> Tensor:
    """(token, 3 x width) of the fused projection -> values (head, token, feature)."""
    tokens, width = output.shape[0], output.shape[1] // 3
    return output[:, 2 * width :].view(tokens, heads, width // heads).transpose(0, 1)


def _plain_layer(
    weights: Tensor, values: Tensor, tokens: list[int], grid: Sequence[int], queries: Sequence[int],
    generator: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    heads = len(weights)
    sums: dict[str, list[list[Tensor]]] = {}
    for head in range(heads):
        for query in queries:
            a, v = weights[head, query, : query + 1], values[head, : query + 1]
            readings = _plain_sensitivity(a, generator)
            readings["entropy"] = -torch.xlogy(a, a).sum()
            readings["effective_tokens"] = 1 / (a**2).sum()
            readings["max_weight"] = a.max()
            readings["sink_mass"] = a[0]
            if query:
                readings["previous_token"] = a[query - 1]
            copies = [place for place in range(query) if tokens[place] == tokens[query]]
            if copies and copies[-1] + 1 < query:
                readings["induction"] = a[copies[-1] + 1]
            for name, value in readings.items():
                sums.setdefault(name, [[] for _ in range(heads)])[head].append(value)
            shuffled = torch.randperm(len(a), generator=generator)
            for size in grid:
                if size >= len(a):
                    continue
                for part, chosen in (("", a.topk(size).indices), ("/control", shuffled[:size])):
                    for name, value in _torch_set(a, v, chosen).items():
                        sums.setdefault(f"{name}/{size}{part}", [[] for _ in range(heads)])[head].append(value)
    means = {name: torch.stack([torch.stack(x).double().mean() for x in by_head]) for name, by_head in sums.items()}
    return _by_grid(means, grid)


def _plain_sensitivity(a: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    u = torch.randn(len(a), generator=generator, dtype=a.dtype)
    u = u / u.norm()
    worst = u
    for _ in range(30):
        worst = a * (worst - a @ worst)
        worst = worst / worst.norm().clamp(min=1e-30)
    return {
        "sensitivity_worst_mean": (a * (worst - a @ worst)).norm(),
        "sensitivity_random_mean": (a * (u - a @ u)).norm(),
    }


def _torch_set(a: Tensor, v: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    inside = torch.zeros(len(a), dtype=torch.bool)
    inside[chosen] = True
    y = a[:, None] * v
    s = y[inside].sum(0)
    far = (y - s).norm(dim=-1)
    apart = 1 - torch.nn.functional.cosine_similarity(y, s[None], dim=-1, eps=torch.finfo(y.dtype).tiny)
    share = a[inside] / a[inside].sum()
    values = {
        "top_mass": a[inside].sum(),
        "selected_divergence": math.log(len(chosen)) + torch.xlogy(share, share).sum(),
        "distance": far[~inside].sum(),
        "distance_per_token": far[~inside].mean(),
        "net_distance": (y[~inside].sum(0) - s).norm(),
    }
    for suffix, d in (("", far), ("_cosine", apart)):
        recall = (d[inside] < d[~inside].min()).double().mean()
        precision = len(chosen) / (len(chosen) + (d[~inside] <= d[inside].max()).sum().double())
        values[f"separability{suffix}"] = (d[inside] <= d[~inside].min()).double().mean()
        values[f"recall{suffix}"], values[f"precision{suffix}"] = recall, precision
        values[f"f_score{suffix}"] = 2 * recall * precision / (recall + precision)
    return values


def _by_grid(means: dict[str, Tensor], grid: Sequence[int]) -> dict[str, Tensor]:
    """ "name/N" and "name/N/control" -> "name" and "name/control", (head, N), NaN where no query was long enough."""
    values: dict[str, Tensor] = {}
    for key, value in means.items():
        name, *rest = key.split("/")
        if not rest:
            values[name] = value
            continue
        whole = "/".join([name, *rest[1:]])
        empty = torch.full((len(value), len(grid)), math.nan, dtype=torch.float64)
        values.setdefault(whole, empty)[:, list(grid).index(int(rest[0]))] = value
    return values
