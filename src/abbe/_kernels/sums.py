"""Sums over the keys of a row, generated from the term of one key; and scores of queries, by products inside a kernel.

A vector loop keeps one float32 partial sum per lane, so over a long row each lane adds thousands of terms, and narrower
vectors mean larger errors: up to 900 eps at 131,072 keys. Every sum over keys is therefore taken in blocks: float32
within a block, where a lane adds 12 terms (an error of 2 eps at most, see `BLOCK`), float64 across blocks.

A term that depends on a condition names it first, and all that it reads (`kept, m = row[j] > cut, mass[j]`, then
`m if kept else ZERO`): a read inside the conditional keeps the loop from becoming vector code, at up to forty times the
cost, wherever the processor cannot read under a mask, as with the 128-bit vectors of x86.

Scores: a product by torch leaves all scores of a block in the cache that the cores share, where others evict them; a
thread that computes the scores of a few rows and reads them right away finds them in its own core's cache. Keys are
packed once: panels of `PANEL` keys, with the numbers of one dimension side by side. The innermost step is then a
product of `ROWS` queries with one panel, whose sums stay in registers. Every score is one sum in the order of the
dimensions, whichever block it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .calls import PACKED_BY
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


_LANES = vector_lanes()
PAY = _LANES >= 8 and has_feature("fma")  # else torch's product, which picks its own vectors, is faster
_VECTORS = 3  # of keys; times ROWS they fill three quarters of the registers: 32 where vectors have 512 bits, else 16
ROWS = 8 if _LANES == 16 else 4
PANEL = _VECTORS * _LANES


@intrinsic
def multiply_panel(
    _typing: Any, out: Any, out_at: Any, stride: Any, query: Any, query_at: Any, panel: Any, panel_at: Any, depth: Any
) -> Any:
    """out[out_at + i stride + c] = sum over d of query[query_at + d ROWS + i] panel[panel_at + d PANEL + c].

    Written in vectors, since LLVM would not keep an array of sums in registers. depth is at least 1.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, integer = ir.VectorType(ir.FloatType(), _LANES), ir.IntType(64)
        many = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        shape = ir.FunctionType(vector, [vector] * 3)
        # Fused if the processor can, else a product and a sum: emulating a fused one would be slow.
        multiply_add = cgutils.get_or_insert_function(builder.module, shape, f"llvm.fmuladd.v{_LANES}f32")

        def start_of(array: int, place: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.gep(data, [arguments[place]])

        def vector_at(pointer: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())

        out_from, query_from, panel_from = start_of(0, 1), start_of(3, 4), start_of(5, 6)
        before = builder.block
        loop, end = builder.append_basic_block("dimension"), builder.append_basic_block("sums")
        builder.branch(loop)
        builder.position_at_end(loop)
        d = builder.phi(integer)
        d.add_incoming(integer(0), before)
        sums = [[builder.phi(vector) for _ in range(_VECTORS)] for _ in range(ROWS)]
        at = builder.mul(d, integer(PANEL))
        keys = [
            builder.load(vector_at(panel_from, builder.add(at, integer(c * _LANES))), align=4) for c in range(_VECTORS)
        ]
        at = builder.mul(d, integer(ROWS))
        for i, row in enumerate(sums):
            number = builder.load(builder.gep(query_from, [builder.add(at, integer(i))]))
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
            spread = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), many)
            for one, some in zip(row, keys, strict=True):
                one.add_incoming(ir.Constant(vector, [0.0] * _LANES), before)
                one.add_incoming(builder.call(multiply_add, [spread, some, one]), loop)
        following = builder.add(d, integer(1))
        d.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, arguments[7]), loop, end)
        builder.position_at_end(end)
        for i, row in enumerate(sums):
            for c, one in enumerate(row):
                offset = builder.add(builder.mul(integer(i), arguments[2]), integer(c * _LANES))
                builder.store(one.incomings[1][0], vector_at(out_from, offset), align=4)
        return context.get_dummy_value()

    integer = types.int64
    return types.void(out, integer, integer, query, integer, panel, integer, integer), generate


@kernel
def pack_keys(key: Any, packed: Any, start: int, stop: int) -> None:
    """packed[h, panel, d, c] = key[h, panel PANEL + c, d], 0 after the last key; a row of work is 48 keys of a head."""
    _, keys, depth = key.shape
    parts = packed.shape[1] // (PACKED_BY * depth)
    for r in range(start, stop):
        head, first = r // parts, r % parts * PACKED_BY
        for begin in range(first, first + PACKED_BY, PANEL):
            panel = packed[head, begin * depth : (begin + PANEL) * depth]
            for c in range(PANEL):
                if begin + c < keys:
                    one = key[head, begin + c]
                    for d in range(depth):
                        panel[d * PANEL + c] = one[d]
                else:
                    for d in range(depth):
                        panel[d * PANEL + c] = ZERO


@kernel
def score_tile(query: Any, packed: Any, first: int, last: int, turned: Any, tile: Any) -> None:
    """tile[i, j] = query[i] . key first + j, for all keys before `last`; `first` begins a panel.

    `turned` is scratch for the transposed queries; tile rows beyond the last query become 0.
    """
    rows, depth = query.shape
    stride = tile.shape[1]
    groups = (rows + ROWS - 1) // ROWS
    for group in range(groups):
        for i in range(ROWS):
            for d in range(depth):
                inside = group * ROWS + i < rows
                turned[(group * depth + d) * ROWS + i] = query[group * ROWS + i, d] if inside else ZERO
    flat = tile.reshape(tile.size)
    for panel in range(first // PANEL, (last + PANEL - 1) // PANEL):
        column = panel * PANEL - first
        for group in range(groups):
            at = group * ROWS
            multiply_panel(
                flat, at * stride + column, stride, turned, at * depth, packed, panel * PANEL * depth, depth
            )  # fmt: skip
