"""The Triton kernels compiled ahead of time to the code of real GPUs, which takes no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inside import triton_choice
from normalizer_cases import slow

triton = pytest.importorskip("triton", reason="triton is not installed: pip install abbe[triton]")

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
CODE = {"cuda": "cubin", "hip": "hsaco"}
MAPS = triton_choice.MAPS
NUMBERS = ("rows", "keys", "params_step")


def compiled(which: str, name: str, plan: Any, target: str, stored: str = "fp32", **fixed: Any) -> bytes:
    """The code of a kernel as the launcher would ask for it; `fixed` numbers are part of the code."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernel_of(which)
    constants = {"MAP": name, "WHOLE": plan.whole, "ROWS": plan.rows, "BLOCK": plan.block} | fixed
    if which == "backward":
        constants.setdefault("WITH_PARAMS", True)
    types = {
        argument: "constexpr" if argument in constants
        else "i32" if argument in NUMBERS
        else "*fp32" if "params" in argument
        else f"*{stored}"
        for argument in kernel.arg_names
    }  # fmt: skip
    # Tensors begin at multiples of 16 bytes, and the launcher says so.
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(kernel, types, constants, aligned)
    made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": plan.warps})
    code: bytes = made.asm[CODE[TARGETS[target][0]]]
    return code


def kernel_of(which: str) -> Any:
    from inside import triton_backward, triton_forward

    return triton_forward if which == "forward" else triton_backward


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from an earlier compilation, and nothing is left behind."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled")
    vendors = set(triton.backends.backends)
    if not {"nvidia", "amd"} <= vendors:
        pytest.skip(f"this triton compiles for {', '.join(sorted(vendors)) or 'nothing'} alone")


@pytest.mark.parametrize("target", ["sm_80", *map(slow, ("sm_90", "gfx942"))])
def test_a_kernel_becomes_code(target: str) -> None:
    code = compiled("forward", "sparsemax", triton_choice.plan(1000), target)
    assert code.startswith(b"\x7fELF")
    assert len(code) > 5000


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", ["forward", "backward"])
@pytest.mark.parametrize("name", MAPS)
def test_every_kernel_and_block_compiles(name: str, which: str, target: str) -> None:
    """As large a share of the registers and of shared memory as the target has, or triton refuses."""
    for plan in triton_choice.all_plans():
        assert compiled(which, name, plan, target).startswith(b"\x7fELF"), plan


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MAPS)
def test_half_precision_and_special_numbers_compile(name: str, target: str) -> None:
    for keys in (40, 3000, 20_000):
        plan = triton_choice.plan(keys)
        for which in ("forward", "backward"):
            for stored in ("fp16", "bf16"):
                assert compiled(which, name, plan, target, stored)
        assert compiled("backward", name, plan, target, WITH_PARAMS=False)
    # A number that is 1 becomes part of the code: one row, one key, one parameter per row.
    for which in ("forward", "backward"):
        assert compiled(which, name, triton_choice.plan(1), target, keys=1, rows=1, params_step=1)
