"""Split rows over threads, as many as torch uses.

A pool of our own, because numba's parallel loops abort the process when two Python threads enter them at once
and bring a second OpenMP runtime beside torch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def over_rows(kernel: Callable[..., None], rows: int, *tensors: Tensor) -> None:
    """Run kernel(*arrays, start, stop) over all rows; the calling thread takes the first share."""
    arrays = [tensor.numpy() for tensor in tensors]
    shares = max(1, min(torch.get_num_threads(), rows))
    bounds = [rows * i // shares for i in range(shares + 1)]
    helpers = _helpers(shares - 1)
    pending = [helpers.submit(kernel, *arrays, bounds[i], bounds[i + 1]) for i in range(1, shares)] if helpers else []
    kernel(*arrays, bounds[0], bounds[1])
    for share in pending:
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
