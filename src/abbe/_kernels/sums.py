"""Sums over the keys of a row, generated from the term of one key.

A vector loop keeps one float32 partial sum per lane, so over a long row each lane adds thousands of terms, and narrower
vectors mean larger errors: up to 900 eps at 131,072 keys. Every sum over keys is therefore taken in blocks: float32
within a block, where a lane adds 12 terms (an error of 2 eps at most, see `BLOCK`), float64 across blocks.

A term that depends on a condition names it first (`kept = row[j] > cut`, then `mass[j] if kept else ZERO`): a read
inside the conditional itself keeps the loop from becoming vector code, at up to forty times the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core.registry import cpu_target

from .compiled import around, kernel
from .vector import ZERO, f32

Row = Any  # marks the arguments of a term that are rows: numba infers types, only the word is read


def has_feature(name: str) -> bool:
    """Whether the processor that kernels are compiled for has this feature."""
    return f"+{name}" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def vector_lanes() -> int:
    """float32 numbers per vector of the processor that kernels are compiled for; 4 if it does not say."""
    return 16 if has_feature("avx512f") else 8 if has_feature("avx") else 4


# Keys whose terms are summed in float32 before the sum continues in float64. m equal terms, the worst case, leave a
# partial sum off by at most m/6 eps, so 12 terms per lane. A loop with few instructions runs over two or more vectors
# at once, each with separate partial sums: its blocks can be longer.
BLOCK = 12 * vector_lanes()
LONG_BLOCK = 2 * BLOCK
_WIDEST = 16  # float32 numbers in the widest vector of any processor

_SOURCE = """
def {name}({arguments}):
    keys = {row}.shape[0]
    {totals} = 0.0
    start = 0
    while start < keys:
        stop = block_end(start, keys, {block})
        {blocks} = {slices}
        {parts} = ZERO
        for j in range(stop - start):
            {terms} = term(j, {at_key})
            {add_parts}
        {add_totals}
        start = stop
    return {returned}
"""


@kernel
def block_end(start: int, keys: int, block: int) -> int:
    """Where the block that begins at `start` ends: after `block` keys; near the end after the last whole vector, then
    after the rest, which would otherwise be added to the vector sums one by one."""
    left = keys - start
    if left >= block:
        return start + block
    return start + (left - left % _WIDEST if left >= _WIDEST else left)


def sum_over_keys(
    block: int, sums: int = 1, *, rounded: bool = True, within: Callable[[Any], Any] = kernel
) -> Callable[[Any], Any]:
    """Turn a function that returns the terms of one key, one per sum, into the sums over a row.

    The function takes the index of the key, then the arguments of the sum; those annotated `Row` are cut into blocks,
    and it may write to them. The sums are float32 if `rounded`, otherwise float64; `within` compiles them.
    """

    def sum_of(term: Any) -> Any:
        _, *names = term.__code__.co_varnames[: term.__code__.co_argcount]
        rows = [name for name in names if term.__annotations__[name] == "Row"]
        terms, parts, totals = ([f"{name}{i}" for i in range(sums)] for name in ("term", "part", "total"))
        source = _SOURCE.format(
            name=term.__name__,
            arguments=", ".join(names),
            row=rows[0],
            block=block,
            blocks=", ".join(f"{name}_" for name in rows),
            slices=", ".join(f"{name}[start:stop]" for name in rows),
            at_key=", ".join(f"{name}_" if name in rows else name for name in names),
            terms=", ".join(terms),
            parts=" = ".join(parts),
            totals=" = ".join(totals),
            add_parts="; ".join(f"{part} += {one}" for part, one in zip(parts, terms, strict=True)),
            add_totals="; ".join(f"{total} += {part}" for total, part in zip(totals, parts, strict=True)),
            returned=", ".join(f"f32({total})" if rounded else total for total in totals),
        )
        return within(around(term, "term", source, {"block_end": block_end, "ZERO": ZERO, "f32": f32}))

    return sum_of


@sum_over_keys(LONG_BLOCK)
def row_dot(j: int, a: Row, b: Row) -> Any:
    return a[j] * b[j]


@sum_over_keys(LONG_BLOCK, rounded=False)
def row_sum(j: int, a: Row) -> Any:
    return a[j]


GATHERED = 48  # 12 passes of four rows: 12 terms per float32 sum, as in `sums`


@kernel
def sum_of_rows(weights: Any, places: Any, rows: Any, total: Any, output: Any) -> None:
    """output = sum over c of weights[c] * rows[places[c]]; `total` is float64 scratch of the same width."""
    count = places.shape[0]
    if count <= GATHERED:
        sum_of_some(weights, places, rows, output)
        return
    total[:] = 0.0
    for start in range(0, count, GATHERED):
        stop = min(start + GATHERED, count)
        sum_of_some(weights[start:stop], places[start:stop], rows, output)
        for d in range(output.shape[0]):
            total[d] += output[d]
    for d in range(output.shape[0]):
        output[d] = f32(total[d])


@kernel
def sum_of_some(weights: Any, places: Any, rows: Any, output: Any) -> None:
    """Four rows at a time, since each pass reads and writes the sum."""
    output[:] = ZERO
    count = places.shape[0]
    whole = count - count % 4
    for c in range(0, whole, 4):
        w, x, y, z = weights[c], weights[c + 1], weights[c + 2], weights[c + 3]
        first, second, third, fourth = rows[places[c]], rows[places[c + 1]], rows[places[c + 2]], rows[places[c + 3]]
        for d in range(output.shape[0]):
            output[d] += (w * first[d] + x * second[d]) + (y * third[d] + z * fourth[d])
    for c in range(whole, count):
        w, first = weights[c], rows[places[c]]
        for d in range(output.shape[0]):
            output[d] += w * first[d]
