"""Split rows over threads, as many as torch uses, and where possible on torch's own.

After its last work a thread of torch's OpenMP team keeps spinning for some milliseconds, on the core that a helper
of ours would need. So the rows go to that same team (GNU OpenMP, as in torch's Linux builds), through the one entry
point that compilers use. Elsewhere, and in a forked child, a small pool does the work. numba's parallel loops would
abort the process when two Python threads enter them at once, and bring a second OpenMP runtime.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

_CHUNK = 1 << 15  # numbers of the first tensor a chunk holds, at least

_forked = False
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def over_rows(kernel: Callable[..., None], rows: int, *tensors: Tensor) -> None:
    """Run kernel(*arrays, start, stop) over all rows, in chunks that the threads take one after the other."""
    arrays = [tensor.numpy() for tensor in tensors]
    threads = max(1, min(torch.get_num_threads(), rows))
    pieces = max(1, min(threads, tensors[0].numel() // _CHUNK))
    bounds = [rows * i // pieces for i in range(pieces + 1)]
    chunks = deque(pairwise(bounds))

    def work() -> None:
        while chunks:
            try:
                start, stop = chunks.popleft()
            except IndexError:  # another thread took the last one
                return
            kernel(*arrays, start, stop)

    _run(work, min(threads, pieces))


def _run(work: Callable[[], None], threads: int) -> None:
    """Call `work` on several threads, the calling one among them, and wait for all."""
    if threads == 1:
        work()
    elif (library := _openmp_of_torch()) is not None and not _forked:
        _run_in_team(library, work, threads)
    else:
        helpers = _helpers(threads - 1)
        pending = [helpers.submit(work) for _ in range(threads - 1)]
        work()
        for share in pending:
            if not share.cancel():  # one that has not begun is not needed any more
                share.result()


_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _run_in_team(library: ctypes.CDLL, work: Callable[[], None], threads: int) -> None:
    errors: list[BaseException] = []

    def entry(_: int | None) -> None:
        try:
            work()
        except BaseException as error:  # it must not cross the C frames
            errors.append(error)

    library.GOMP_parallel(_ENTRY(entry), None, ctypes.c_uint(threads), ctypes.c_uint(0))
    if errors:
        raise errors[0]


@lru_cache(maxsize=1)
def _openmp_of_torch() -> ctypes.CDLL | None:
    """The GNU OpenMP library that torch has loaded, None if there is none or it is in doubt."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[-1] for line in mapped.splitlines() if "libgomp" in line}
    own = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)} or loaded
    if len(own) != 1:
        return None
    library = ctypes.CDLL(own.pop())
    return library if hasattr(library, "GOMP_parallel") else None


def _helpers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="abbe"), count
    return _pool


def _forget_threads() -> None:
    """A forked child has none of its parent's threads, neither ours nor OpenMP's."""
    global _forked, _pool
    _forked, _pool = True, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
