"""Byte codecs of the small float formats and block scales in Triton; rules as in `deepinfer.ops.quant.codec`.

Values are float32, codes int32 or uint8. Division is true division. `amax` values are handled as their bits: for
non-negative floats integer order is float order, and NaN lies above infinity, so no NaN gets lost in a max.
"""

from __future__ import annotations

import triton
import triton.language as tl

INF_BITS = tl.constexpr(0x7F800000)
NAN_BITS = tl.constexpr(0x7FC00000)


@triton.jit
def magnitude_bits(x):
    """|x| as the int32 whose order is that of the values."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def e4m3_encode(x):
    """uint8, nearest even, saturating; NaN gives 0x7F."""
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e4m3_decode(code):
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def ue8m0_encode(scale):
    """int32 exponent of non-negative, finite scales, rounded up, within [0, 254]."""
    bits = scale.to(tl.int32, bitcast=True)
    exponent = bits >> 23
    mantissa = bits & 0x7FFFFF
    up = tl.where(exponent == 0, mantissa > 0x400000, mantissa != 0)
    return tl.minimum(exponent + up.to(tl.int32), 254)


@triton.jit
def ue8m0_decode(byte):
    """float32 of int32 exponents; 255 is NaN, 0 the subnormal 2^-127."""
    bits = tl.where(byte == 0, 0x400000, byte << 23)
    return tl.where(byte == 255, NAN_BITS, bits).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_encode(x):
    """int32 codes 0..15, nearest with ties to the even code, saturating; NaN gives 0."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return code | tl.where(size == size, sign, 0)


@triton.jit
def e2m1_decode(code):
    """float32 of int32 codes 0..15, by building the bits."""
    size = code & 7
    bits = ((126 + (size >> 1)) << 23) | ((size & 1) << 22)
    bits = tl.where(size == 1, 0x3F000000, tl.where(size == 0, 0, bits))
    return (bits | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def pack_pairs(code):
    """Codes [P, N] -> bytes [P, N / 2], the even one in the low nibble."""
    low, high = tl.split(tl.reshape(code, [code.shape[0], code.shape[1] // 2, 2]))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def unpack_pairs(packed):
    """Bytes [P, N] as int32 -> codes [P, 2 N]."""
    return tl.interleave(packed & 15, packed >> 4)


@triton.jit
def nan_where(bad, value):
    return tl.where(bad, NAN_BITS, value.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def quotient(x, scale):
    """The correctly rounded x / scale of rows x [P, E] with |x| <= 1000 * scale [P]; a NaN scale makes its row NaN.

    One true division per row, then per element a residual step, which rounds correctly when the reciprocal does
    (Markstein 1990). Both sides are first scaled by the power of two that brings the divisor near 1, so that nothing
    overflows; what underflows then is far below the smallest code.
    """
    field = scale.to(tl.int32, bitcast=True) >> 23
    bits = tl.where(field >= 254, 0x400000, (254 - tl.minimum(field, 253)) << 23)
    bits = tl.where(field == 0, 0x7F000000, bits)
    power = bits.to(tl.float32, bitcast=True)
    divisor = scale * power
    near = tl.div_rn(1.0, divisor)
    wide = x * power[:, None]
    first = wide * near[:, None]
    rest = tl.fma(-first, tl.broadcast_to(divisor[:, None], x.shape), wide)
    made = tl.fma(rest, tl.broadcast_to(near[:, None], x.shape), first)
    return tl.where(wide == 0.0, first, made)  # the residual step would lose the sign of a zero


@triton.jit
def ue8m0_reciprocal(byte):
    """float32 2^(127 - byte): multiplying by it is dividing by the scale, bit for bit."""
    return ue8m0_decode(tl.where(byte == 255, 255, 254 - byte))


@triton.jit
def fp8_blocks(x, floor, UE8M0: tl.constexpr):
    """Quantise rows of x [P, E], one block each: (payload uint8 [P, E], scale [P] as stored: float32 or int32 byte)."""
    largest = tl.max(magnitude_bits(x), axis=1)
    bad = largest >= INF_BITS
    size = tl.maximum(tl.where(bad, 0, largest).to(tl.float32, bitcast=True), floor)
    ratio = tl.div_rn(size, 448.0)
    if UE8M0:
        stored = tl.where(bad, 255, ue8m0_encode(ratio))
        value = x * ue8m0_reciprocal(stored)[:, None]
    else:
        stored = nan_where(bad, tl.where(ratio == 0.0, 1.0, ratio))
        value = quotient(x, stored)
    return e4m3_encode(value), stored  # every value of a bad block is NaN by now, whose code is 0x7F


@triton.jit
def mxfp4_blocks(x, floor):
    """As `fp8_blocks` in e2m1: (codes int32 [P, E], exponent bytes int32 [P])."""
    largest = tl.max(magnitude_bits(x), axis=1)
    bad = largest >= INF_BITS
    size = tl.maximum(tl.where(bad, 0, largest).to(tl.float32, bitcast=True), floor)
    stored = tl.where(bad, 255, ue8m0_encode(tl.div_rn(size, 6.0)))
    return e2m1_encode(x * ue8m0_reciprocal(stored)[:, None]), stored
