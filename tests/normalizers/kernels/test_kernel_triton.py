"""The Triton kernels without a GPU: which rows they are chosen for, their numbers in the interpreter, and giving up.

Compiled to GPU code they are in test_kernel_triton_code.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from inside import normalizers_dispatch as _dispatch
from inside import normalizers_row_map as _row_map
from inside import triton_choice, triton_run
from normalizer_cases import random_logits
from torch import Tensor

import abbe

HERE = Path(__file__).parent
INTERPRETED = HERE / "triton_interpreted.py"
needs_triton = pytest.mark.skipif(
    not triton_choice.INSTALLED, reason="triton is not installed: pip install abbe[triton]"
)


def on_device(kind: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """What the choice asks of a tensor, of a device that is not here."""
    return SimpleNamespace(
        device=SimpleNamespace(type=kind), dtype=dtype, shape=shape, numel=lambda: int(torch.Size(shape).numel())
    )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_choice, "INSTALLED", True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "entmax"])
def test_large_rows_of_a_gpu_go_to_triton(name: str, dtype: torch.dtype) -> None:
    """ROCm tensors are of type cuda, too."""
    for shape in ((1024, 64), (4, 16, 1024, 1024), (70_000, 1), (1, 131_072)):
        assert _dispatch.fused_on_gpu(name, on_device("cuda", *shape, dtype=dtype))


@pytest.mark.usefixtures("installed")
def test_other_rows_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    large = (1024, 64)
    others = {
        "small": ("sparsemax", on_device("cuda", 3, 64)),
        "float64": ("sparsemax", on_device("cuda", *large, dtype=torch.float64)),
        "too long": ("entmax15", on_device("cuda", 4, 131_073)),
        "no keys": ("entmax15", on_device("cuda", 4, 0)),
        "another map": ("softmax", on_device("cuda", *large)),
        **{kind: ("entmax", on_device(kind, *large)) for kind in ("cpu", "mps", "xpu", "meta")},
    }
    assert [what for what, (name, rows) in others.items() if _dispatch.fused_on_gpu(name, rows)] == []
    gpu = on_device("cuda", *large)
    with _dispatch.kernels_from(1):
        assert _dispatch.fused_on_gpu("sparsemax", on_device("cuda", 3, 64))
    for module, attribute, value in (
        (triton_choice, "INSTALLED", False),
        (triton_run, "_broken", True),
        (_dispatch, "switched_on", lambda: False),  # ABBE_KERNELS=off
        (_dispatch, "inside_transform", lambda: True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, attribute, value)
            assert not _dispatch.fused_on_gpu("sparsemax", gpu), attribute
    assert _dispatch.fused_on_gpu("sparsemax", gpu)


def test_every_length_has_a_plan_that_a_gpu_can_launch() -> None:
    made = {triton_choice.plan(keys) for keys in (*range(1, 8194), 20_000, 131_072)}
    assert made == set(triton_choice.all_plans())
    for keys in (1, 31, 33, 1000, 8192):
        plan = triton_choice.plan(keys)
        assert plan.whole
        assert keys <= plan.block
    assert not triton_choice.plan(8193).whole
    for plan in made:
        assert all(number & (number - 1) == 0 for number in (plan.rows, plan.block, plan.warps))  # powers of 2
        assert 1 <= plan.warps <= 16  # 1,024 threads of a ROCm wavefront, 64 wide
        assert plan.rows * plan.block <= 8192


def test_a_kernel_that_fails_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward: the reference answers, in half precision as well, and one warning says why."""
    made, logits = abbe.normalizer("entmax:alpha=1.3,learn=true"), random_logits(3, 9, dtype=torch.float32)
    upstream = random_logits(3, 9, seed=1, dtype=torch.float32)

    def outcome() -> list[Tensor]:
        leaf = logits.clone().requires_grad_()
        weights = made(leaf)
        return [weights, *torch.autograd.grad(weights, [leaf, *made.parameters()], upstream)]

    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1 << 62)
    want = outcome()
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)
    monkeypatch.setattr(_dispatch, "usable_for", lambda _: False)  # no CPU kernel steps in
    monkeypatch.setattr(triton_choice, "DEVICES", ("cpu",))
    monkeypatch.setattr(triton_choice, "INSTALLED", True)
    monkeypatch.setattr(triton_run, "_broken", False)
    monkeypatch.setattr(triton_run, "_kernel", lambda which: {}[f"no {which} here"])
    with pytest.warns(RuntimeWarning, match=r"without its Triton kernels.*no forward here.*ABBE_KERNELS=off"):
        got = outcome()
    for mine, exact in zip(got, want, strict=True):
        torch.testing.assert_close(mine, exact)
    assert not _dispatch.fused_on_gpu("entmax", logits)
    half = _row_map.run_forward(logits.bfloat16(), torch.tensor([1.0, 0.3]), "entmax")  # no second warning
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), want[0].detach(), rtol=0.02, atol=0.02)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["not slow", *(f"slow and {part}" for part in ("hostile", "long", "not hostile and not long"))]
)
def test_numbers_in_the_interpreter(chosen: str) -> None:
    """Chosen by mark and name: the tests of triton_interpreted.py, in a process of their own."""
    mark, _, part = chosen.partition(" and ")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(INTERPRETED)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [*command, "-m", mark, *(["-k", part] if part else [])],
        env=environment, capture_output=True, text=True, check=False, cwd=HERE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
