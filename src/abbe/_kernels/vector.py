"""Scalar float32 building blocks that LLVM turns into vector code when they are inlined into a loop.

numba's own ``exp`` and ``log`` call libm one element at a time, and its ``max`` keeps a loop scalar.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int32, types
from numba.extending import intrinsic

from .compiled import inlined, kernel, part

f32 = np.float32

ZERO: Any = f32(0.0)  # sums mix float32 and float64 freely, which the types of numpy do not
ONE = f32(1.0)
NEG_INF = f32(-np.inf)
POS_INF = f32(np.inf)
NAN = f32(np.nan)
LARGEST = np.finfo(np.float32).max
TINY = f32(1e-37)  # smaller weights count as 0 where their logarithm or power is needed

# Fused multiply-add only: the splitting constants below must not be reordered.
STRICT = {"contract"}


def _elementwise(function: Any) -> Any:
    return part(function, fastmath=STRICT)


@intrinsic
def bits(_typing: Any, _x: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def from_bits(_typing: Any, _x: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def _binary_intrinsic(name: str, *flags: str) -> Any:
    @intrinsic
    def call(_typing: Any, _x: Any, _y: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            shape = ir.FunctionType(ir.FloatType(), [ir.FloatType(), ir.FloatType()])
            function = builder.module.declare_intrinsic(name, [ir.FloatType()], shape)
            return builder.call(function, arguments, fastmath=flags)

        return types.float32(types.float32, types.float32), generate

    return call


maximum = _binary_intrinsic("llvm.maximum")  # NaN in, NaN out
minimum = _binary_intrinsic("llvm.minimum")
larger = _binary_intrinsic("llvm.maxnum", "nnan", "nsz")  # one instruction, for numbers that cannot be NaN
smaller = _binary_intrinsic("llvm.minnum", "nnan", "nsz")

_LOG2_E = f32(1.4426950408889634)
_LN2_HIGH = f32(0.693359375)  # ln 2 in two parts, the first with few bits: n times it is exact for |n| < 2**15
_LN2_LOW = f32(-2.12194440e-4)
_ROUND = f32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer in the low bits
_SQRT_HALF = f32(0.70710678)


@_elementwise
def exp(x: Any) -> Any:
    """e**x within 2 ulp for -87 < x < 88; 0 below (and for NaN: callers catch NaN by the row maximum)."""
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    # e**r for |r| <= ln(2)/2 by the polynomial of Cephes' expf, log below by that of its logf.
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    y = p * r * r + r + ONE
    # times 2**n: `shifted` holds n in its low bits, which move to the exponent.
    value = from_bits(int32(bits(y) + int32(bits(shifted) << int32(23))))
    return value if x > f32(-87.0) else ZERO


@_elementwise
def log(x: Any) -> Any:
    """ln x within 2 ulp for normal x > 0."""
    pattern = bits(x)
    exponent = int32((pattern >> int32(23)) - int32(126))
    m = from_bits(int32((pattern & int32(0x007FFFFF)) | int32(0x3F000000)))
    small = m < _SQRT_HALF
    # m in [sqrt(1/2), sqrt(2)), so that ln x near x = 1 has no ln 2 to cancel.
    e = f32(exponent) - (ONE if small else ZERO)
    m = (m + m if small else m) - ONE
    z = m * m
    p = f32(7.0376836292e-2)
    p = p * m + f32(-1.1514610310e-1)
    p = p * m + f32(1.1676998740e-1)
    p = p * m + f32(-1.2420140846e-1)
    p = p * m + f32(1.4249322787e-1)
    p = p * m + f32(-1.6668057665e-1)
    p = p * m + f32(2.0000714765e-1)
    p = p * m + f32(-2.4999993993e-1)
    p = p * m + f32(3.3333331174e-1)
    y = m * z * p + e * _LN2_LOW - f32(0.5) * z
    return m + y + e * _LN2_HIGH


@_elementwise
def on_or_off_edge(t: Any, near: Any, beta: Any, high: Any, low: Any, over_c: Any) -> Any:
    """u = (c + beta near)/c = 1 + t for c = high + low, and the x with ln u = ln(fl(u)) + (x - (fl(u) - 1))/u.

    Where t is small, x = t restores what 1 + t rounds away. Near u = 0, the edge of the support, 1 + t has lost its
    digits; there u comes from the threshold in two parts, and x = u - 1 leaves ln u as it is.
    """
    u = ONE + t
    edge = ((beta * near + high) + low) * over_c
    far = u > f32(0.5)
    u = u if far else edge
    return u, (t if far else u - ONE)


@_elementwise
def rough_power(x: Any, power: Any, shift: Any) -> Any:
    """2**shift x**power for normal 0 < x: a relative error of about 1e-4 (1 + power), at a third of the cost."""
    pattern = bits(x)
    m = from_bits(int32((pattern & int32(0x007FFFFF)) | int32(0x3F800000)))
    # log2 of m in [1, 2) to four digits, and 2**r below likewise: short minimax polynomials.
    p = f32(-8.1617158e-02)
    p = p * m + f32(6.4515191e-01)
    p = p * m + f32(-2.1206996e00)
    p = p * m + f32(4.0701178e00)
    p = p * m + f32(-2.5128655e00)
    y = shift + power * (f32(int32((pattern >> int32(23)) - int32(127))) + p)
    shifted = y + _ROUND
    r = y - (shifted - _ROUND)
    q = f32(5.6005940e-02)
    q = q * r + f32(2.4264008e-01)
    q = q * r + f32(6.9310531e-01)
    q = q * r + f32(9.9992449e-01)
    value = from_bits(int32(bits(q) + int32(bits(shifted) << int32(23))))
    return value if y > f32(-125.0) else ZERO  # below, the bits of the exponent would wrap around


@_elementwise
def below(x: Any, top: Any, scale: Any) -> Any:
    """scale (x - top), in this order: exact for logits of any size."""
    return scale * (x - top)


@_elementwise
def half_below(x: Any, top: Any) -> Any:
    """Half of x - top, exactly: finite for all finite logits."""
    return f32(0.5) * x - f32(0.5) * top


@_elementwise
def above(x: Any, top: Any, scale: Any, tau: Any, rest: Any) -> Any:
    """scale (x - top) - (tau + rest), a threshold in two parts: one float32 would be off by half an eps of tau per key,
    and a long row has many."""
    return (scale * (x - top) - tau) - rest


@_elementwise
def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x), exact zeros and ones in the tails."""
    bounded = maximum(minimum(x, f32(87.0)), f32(-88.0))  # at both ends `exp` gives the exact 0 of a tail
    e = exp(-abs(bounded))  # of a number <= 0: no overflow
    small = e / (ONE + e)
    value = ONE - small if bounded > ZERO else small
    return value if x == x else NAN


@kernel
def row_max(row: Any) -> Any:
    """Largest entry; NaN if any entry is NaN."""
    top = NEG_INF
    for j in range(row.shape[0]):
        top = maximum(row[j], top)
    return top


@kernel
def usable(top: Any, out: Any) -> bool:
    """False, with `out` filled, for a row without visible keys (zeros) or with NaN or +inf (NaN)."""
    if NEG_INF < top < POS_INF:
        return True
    out[:] = ZERO if top == NEG_INF else NAN
    return False


@inlined
def copy_row(row: Any, out: Any) -> None:
    """out = row. `out[:] = row` would make numba compile an error message, too, which takes 2 s."""
    for j in range(out.shape[0]):
        out[j] = row[j]
