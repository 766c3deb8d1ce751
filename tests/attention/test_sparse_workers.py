"""Attention over the support in worker processes of a DataLoader, and with an alpha that learns."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from inside import sparse_op
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import abbe

SPEC = "entmax:alpha=1.5"
SECONDS = 60  # a worker that hangs is an error after so long


def seeded(seed: int, length: int = 1100, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, length, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


class Attended(Dataset[Tensor]):
    """Each item is an attention of its own, with gradients."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        inputs = [x.requires_grad_() for x in seeded(index)]
        out = abbe.attention(*inputs, SPEC, causal=True)
        return torch.cat([out.detach(), *torch.autograd.grad(out.sum(), inputs)])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_workers_of_a_data_loader_do_not_hang() -> None:
    """Forked after the parent has used its threads, of which a child has none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = [Attended()[i] for i in range(2)]
        loader = DataLoader(Attended(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS)
        for given, wanted in zip(loader, expected, strict=True):
            assert_close(given, wanted)
    finally:
        torch.set_num_threads(threads)


def test_an_alpha_that_learns_has_the_gradient_of_full_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    real = sparse_op.attend
    monkeypatch.setattr(sparse_op, "attend", lambda *given: (taken.append(True), real(*given))[1])
    grads = []
    for dtype in (torch.float32, torch.float64):
        made = abbe.normalizer("entmax:alpha=1.4,learn=true").to(dtype)
        q, k, v = seeded(5, dtype=dtype)
        abbe.attention(q, k, v, made, causal=True).square().sum().backward()
        grads.append([parameter.grad for parameter in made.parameters()])
    assert taken  # in float32; float64 takes full rows
    assert bool((grads[0][0] != 0).all())
    assert_close(grads[0], grads[1], check_dtype=False, rtol=2e-3, atol=1e-3)
