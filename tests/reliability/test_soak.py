"""Long use: thousands of calls, taps and swaps leave no memory, hook or changed weight behind; wild rows give
documented results only."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import normalizers_row_map as _dispatch
from normalizer_cases import Case, every_case
from tiny_models import llama, tokens
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from wild_rows import wild_mask, wild_rows

import abbe

MEGABYTE = 1 << 20
QUICK_ROWS, ALL_ROWS = 600, 49_998  # per precision and path, so that every normalizer sees more than 200,000
PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def resident() -> int:
    """Bytes of memory that this process holds, after everything unused was given back."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        pytest.skip("only Linux tells how much memory a process holds")
    return pages * 4096


def growth(call: Callable[[], object], times: int, warm_up: int) -> int:
    for _ in range(warm_up):
        call()
    before = resident()
    for _ in range(times):
        call()
    return resident() - before


@dataclass(frozen=True)
class Before:
    """A network as it was."""

    weights: dict[str, Tensor]
    modules: list[str]
    attention: str
    registered: tuple[set[str], ...]


def registered() -> tuple[set[str], ...]:
    """The attention and mask functions that transformers knows by name."""
    return set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)


def state_of(network: Any) -> Before:
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modules = [name for name, _ in network.named_modules()]
    return Before(weights, modules, network.config._attn_implementation, registered())


def hooks_of(network: nn.Module) -> dict[str, int]:
    """How many hooks each module has; those without are left out."""
    kinds = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
    assert len(kinds) >= 8
    counts = {name: sum(len(getattr(module, kind)) for kind in kinds) for name, module in network.named_modules()}
    return {name: count for name, count in counts.items() if count}


def assert_untouched(network: Any, before: Before) -> None:
    now = state_of(network)
    assert hooks_of(network) == {}
    assert now.modules == before.modules
    assert now.attention == before.attention
    assert now.registered == before.registered
    assert list(now.weights) == list(before.weights)
    assert all(torch.equal(tensor, before.weights[name]) for name, tensor in now.weights.items())


def calls_of(case: Case, rows: int) -> Callable[[], None]:
    made = case.make(torch.float32)
    logits = torch.randn(rows, 3, 4, 32, generator=torch.Generator().manual_seed(0))

    def call() -> None:
        leaf = logits.clone().requires_grad_()
        torch.autograd.grad(made(leaf).square().sum(), [leaf, *made.parameters()])

    return call


@pytest.mark.slow
@every_case()
def test_2000_calls_hold_no_memory(case: Case, path: object) -> None:
    """Forward and backward, by the reference and by the kernels; one block of logits per call would be 24 MB."""
    assert growth(calls_of(case, 8), times=2000, warm_up=100) < 20 * MEGABYTE


def test_calls_hold_no_memory(fused: None) -> None:
    """A leak of one block of logits per call would be 39 MB."""
    for spec in ("entmax:alpha=1.5,learn=true", "hybrid:a=softmax,b=sparsemax,mix=0.25"):
        assert growth(calls_of(Case(spec), 64), times=400, warm_up=20) < 20 * MEGABYTE, spec


def test_a_leak_would_be_seen() -> None:
    kept: list[Tensor] = []
    assert growth(lambda: kept.append(torch.ones(1 << 20)), times=40, warm_up=1) > 20 * MEGABYTE


def tap_once(network: Any) -> None:
    heard: list[int] = []
    with torch.no_grad(), abbe.tap(network) as tap:
        tap.listen(lambda call: heard.append(call.layer))
        network(input_ids=tokens())
    assert heard == [0, 1]


def swap_once(network: Any) -> None:
    with abbe.swap(network, "entmax:alpha=1.5,learn=true"):
        network(input_ids=tokens(), labels=tokens()).loss.backward()
    network.zero_grad(set_to_none=True)


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("once", [tap_once, swap_once])
def test_taps_and_swaps_leave_nothing_behind(once: Callable[[Any], None], times: int) -> None:
    network = llama()
    before = state_of(network)
    assert hooks_of(network) == {}
    assert growth(lambda: once(network), times, warm_up=5) < 20 * MEGABYTE
    assert_untouched(network, before)


@pytest.mark.parametrize("once", [tap_once, swap_once])
def test_what_would_be_left_behind_is_seen(once: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """During the call there are hooks or modules more, so that the test above has something to find."""
    network = llama()
    before = state_of(network)
    forward = network.forward

    def look(*given: Any, **named: Any) -> Any:
        with pytest.raises(AssertionError):
            assert_untouched(network, before)
        return forward(*given, **named)

    monkeypatch.setattr(network, "forward", look)
    once(network)


@pytest.mark.quick(19)
@pytest.mark.parametrize("rows", [QUICK_ROWS, pytest.param(ALL_ROWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by", ["reference", "kernels"])
@every_case()
def test_wild_rows_give_documented_results(case: Case, by: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinities, NaN, 1e30, denormals, with and without a mask, in four precisions."""
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1 if by == "kernels" else 1 << 40)
    for number, dtype in enumerate(PRECISIONS):
        if by == "kernels" and dtype == torch.float64:
            continue  # no kernels take it
        logits = wild_rows(rows, dtype, seed=number).view(rows // 3, 3, 1, -1)
        mask = None if number % 2 else wild_mask(logits, seed=number)
        made = case.make(torch.float64 if dtype == torch.float64 else torch.float32)
        assert_documented(case, made, logits, mask)


def assert_documented(case: Case, made: abbe.Normalizer, logits: Tensor, mask: Tensor | None) -> None:
    """Zeros without keys, NaN from NaN and +inf, and else finite weights >= 0 that sum to 1 where they should."""
    leaf = logits.clone().requires_grad_()
    output = made(leaf, mask)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    grad, *_ = torch.autograd.grad(output, [leaf, *made.parameters()], upstream)
    weights = output.detach()
    hidden = torch.zeros_like(logits, dtype=torch.bool) if mask is None else ~mask
    absent, spoiling = hidden | (logits == -torch.inf), ~hidden & (logits.isnan() | (logits == torch.inf))
    empty, spoiled = absent.all(-1), spoiling.any(-1)
    sound = ~empty & ~spoiled
    assert min(int(kind.sum()) for kind in (empty, spoiled, sound)) > len(logits) // 40

    assert bool((weights[empty] == 0).all())
    assert bool((grad[empty] == 0).all())
    if case.row_coupled:
        assert bool(weights[spoiled].isnan().all())
        assert bool(grad[spoiled][~absent[spoiled]].isnan().all())
    else:
        nan = logits.isnan() & ~hidden
        assert torch.equal(weights.isnan(), nan)
        assert torch.equal(grad.isnan(), nan)
        assert bool((weights[~hidden & (logits == torch.inf)] == 1).all())

    eps = torch.finfo(logits.dtype).eps
    kept, slope = weights[sound].double(), grad[sound]
    assert bool(kept.isfinite().all())
    assert bool((kept >= 0).all())
    assert bool((kept <= most(made) + 4 * eps).all())
    assert bool((kept[absent[sound]] == 0).all())
    assert bool((slope[absent[sound]] == 0).all())
    assert not bool(slope.isnan().any())
    if logits.dtype in (torch.float64, torch.float32):  # a steep one overflows float16
        assert bool(slope.isfinite().all())
    if case.simplex:
        # Weights of half precision are rounded after they were summed: half an eps in all.
        tolerance = 8 * eps if eps < 1e-6 else eps
        torch.testing.assert_close(kept.sum(-1), torch.ones(len(kept), dtype=torch.float64), rtol=0, atol=tolerance)
    if case.continuous and logits.dtype != torch.float64:
        exact = case.make(torch.float64)
        exact.load_state_dict(made.state_dict())
        with torch.no_grad():
            want = exact(logits.double(), mask)[sound]
        torch.testing.assert_close(kept, want, rtol=0, atol=2e-5 + eps)


def most(made: abbe.Normalizer) -> float:
    """The largest weight there can be: an elastic offset above 0 is added to 1."""
    return 1 + max(0.0, made._largest("tau")) if made.name == "elastic" else 1.0
