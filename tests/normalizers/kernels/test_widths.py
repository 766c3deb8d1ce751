"""The kernels on narrower vectors than the host's: another processor must not give other numbers.

NUMBA_CPU_NAME tells numba for which processor it compiles, NUMBA_CPU_FEATURES for which of its features: by default the
host's, 512-bit vectors included, whatever the name. Both are read once, so each width is a process of its own, which
runs the tests of kernels that are marked "narrow".
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("processor", "features", "width"),
    [("haswell", "+avx,+avx2,+fma", 256), pytest.param("generic", "", 128, marks=pytest.mark.slow)],
)
def test_kernels_on_narrower_vectors(processor: str, features: str, width: int) -> None:
    # a file for its sums, one test of the other: to collect all that it has takes as long as a kernel
    files = [str(HERE / name) for name in ("test_sums.py", "test_kernels.py::test_kernel_of_narrow_vectors")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "narrow and not slow", *files],
        cwd=HERE.parents[2],
        env={**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    closing = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{processor}: {done.stdout[-4000:]}{done.stderr[-1000:]}"
    assert int(closing[0].split()[0]) >= 8, closing
    assert f"; kernels for {processor}, {width}-bit vectors\n" in done.stdout
