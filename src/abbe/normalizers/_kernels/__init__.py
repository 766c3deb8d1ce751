"""Fused row kernels for float32 rows on a CPU, compiled by numba on first use and cached on disk.

Imported on first use: a program that only handles small tensors never loads numba.

Every map has two kernels with fixed signatures, both over rows ``start <= r < stop``:

    forward(logits, params, weights, start, stop)
    backward(grad, logits, weights, params, grad_logits, grad_params, start, stop)

``logits``, ``weights`` and ``grad`` are C-ordered (rows, keys); ``params`` is (rows, P), or (1, P) when all
rows share it; ``grad_params`` is (rows, P) and holds zeros, or (0, P) when it is not needed. A logit of -inf is an
absent key. A kernel holds no state and releases the GIL, so rows can be split over threads.

`rows` generates both from a function of one row, `abbe._kernels.sums` the sums over a row from the term of one key.
"""
