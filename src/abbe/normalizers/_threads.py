"""Split rows over threads, as many as torch uses.

A pool of our own, because numba's parallel loops abort the process when two Python threads enter them at once
and bring a second OpenMP runtime beside torch's.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


_CHUNK = 1 << 15  # numbers of the first tensor a chunk holds, at least


def over_rows(kernel: Callable[..., None], rows: int, *tensors: Tensor) -> None:
    """Run kernel(*arrays, start, stop) over all rows, in chunks that the threads take one after the other.

    Chunks, and not equal shares, because torch's own threads keep spinning for a while after their last work: a
    helper that has to share its core with one of them would else hold up the whole call.
    """
    arrays = [tensor.numpy() for tensor in tensors]
    threads = max(1, min(torch.get_num_threads(), rows))
    pieces = max(1, min(rows, 16 * threads, tensors[0].numel() // _CHUNK))
    bounds = [rows * i // pieces for i in range(pieces + 1)]
    chunks = deque(pairwise(bounds))

    def work() -> None:
        while chunks:
            try:
                start, stop = chunks.popleft()
            except IndexError:  # another thread took the last one
                return
            kernel(*arrays, start, stop)

    helpers = _helpers(min(threads, pieces) - 1)
    pending = [helpers.submit(work) for _ in range(min(threads, pieces) - 1)] if helpers else []
    work()
    for share in pending:
        if not share.cancel():  # one that has not begun is not needed any more
            share.result()


def _helpers(count: int) -> ThreadPoolExecutor | None:
    global _pool, _pool_size
    if count == 0:
        return None
    if _pool is None or _pool_size < count:
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="abbe"), count
    return _pool


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_pool)
