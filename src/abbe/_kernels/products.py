"""Scores of a few queries with many keys, by a matrix product inside a kernel.

A product by torch leaves all scores of a block in the cache that the cores share, where others evict them; a thread
that computes the scores of a few rows and reads them right away finds them in its own core's cache.

Keys are packed once: panels of `PANEL` keys, with the numbers of one dimension side by side. The innermost step is then
a product of `ROWS` queries with one panel, whose sums stay in registers. Every score is one sum in the order of the
dimensions, whichever block it belongs to.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import kernel
from .sums import has_feature, vector_lanes
from .vector import ZERO

_LANES = vector_lanes()
PAY = _LANES >= 8 and has_feature("fma")  # else torch's product, which picks its own vectors, is faster
_VECTORS = 3  # of keys; times ROWS they fill three quarters of the registers: 32 where vectors have 512 bits, else 16
ROWS = 8 if _LANES == 16 else 4
PANEL = _VECTORS * _LANES
_PACKED_BY = 48  # keys: whole panels on every processor


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
    parts = packed.shape[1] // (_PACKED_BY * depth)
    for r in range(start, stop):
        head, first = r // parts, r % parts * _PACKED_BY
        for begin in range(first, first + _PACKED_BY, PANEL):
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
