"""Byte codecs of the small float formats and block scales in Triton; rules as in `deepinfer.ops.quant.codec`.

Values are float32, codes int32 or uint8. Division is true division. Block maxima propagate NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

NAN_BITS = tl.constexpr(0x7FC00000)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def block_maximum(x):
    """(largest finite |x| of each row of x [P, E], or 0; whether the row holds NaN or inf)."""
    largest = tl.reduce(tl.abs(x), 1, _larger)
    bad = (largest < float("inf")) == 0
    return tl.where(bad, 0.0, largest), bad


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
def e2m1_steps(x, BOUNDED: tl.constexpr):
    """float32 2^23 + code of |x|, nearest with ties to the even code, saturating unless BOUNDED promises |x| <= 6.

    Codes are the rounded minimum of 2 |x|, |x| + 2 and |x| / 2 + 4. Adding 2^23 rounds each of them, once, to integers,
    and rounding keeps order.
    """
    size = tl.abs(x)
    steps = tl.fma(size, tl.full(x.shape, 2.0, tl.float32), tl.full(x.shape, 8388608.0, tl.float32))
    steps = tl.minimum(steps, size + 8388610.0)
    steps = tl.minimum(steps, tl.fma(size, tl.full(x.shape, 0.5, tl.float32), tl.full(x.shape, 8388612.0, tl.float32)))
    if not BOUNDED:
        steps = tl.minimum(steps, 8388615.0)
    return steps


@triton.jit
def e2m1_pack(x, bad, BOUNDED: tl.constexpr):
    """Bytes [P, N / 2] of values [P, N], the even one in the low nibble; rows that are `bad` hold NaN and give 0."""
    low, high = tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
    first = e2m1_steps(low, BOUNDED).to(tl.uint32, bitcast=True)
    second = e2m1_steps(high, BOUNDED).to(tl.uint32, bitcast=True)
    # Of NaN every step has the same bits: their difference is 0. The product is free, a selection per byte is not.
    codes = second * tl.where(bad, 0xFFFFFFFF, 16).to(tl.uint32)[:, None] + first
    below = low.to(tl.uint32, bitcast=True) >> 28  # bit 3 is the sign; a NaN that was computed has none
    above = high.to(tl.uint32, bitcast=True) >> 24  # bit 7 is the sign
    signs = above ^ ((above ^ below) & 8)
    return (signs ^ ((signs ^ codes) & 0x77)).to(tl.uint8)


@triton.jit
def e2m1_decode(code):
    """float32 of int32 codes 0..15: the bits of a float32 2^126 times smaller, exact even where that is subnormal."""
    return (((code & 7) << 22) | ((code & 8) << 28)).to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def unpack_pairs(packed):
    """Bytes [P, N] as int32 -> codes [P, 2 N]."""
    return tl.interleave(packed & 15, packed >> 4)


@triton.jit
def nan_where(bad, value):
    return tl.where(bad, NAN_BITS, value.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def over(value, TOP: tl.constexpr, NORMAL: tl.constexpr):
    """The correctly rounded value / TOP of finite values; NORMAL promises values of 2^-50 and more.

    Normal ones need no range check: the product with the rounded reciprocal is corrected by its exact residual.
    """
    if NORMAL:
        first = value * (1.0 / TOP)
        rest = tl.fma(-first, tl.full(value.shape, TOP, tl.float32), value)
        made = tl.fma(rest, tl.full(value.shape, 1.0 / TOP, tl.float32), first)
    else:
        made = tl.div_rn(value, TOP)
    return made


@triton.jit
def reciprocal(scale):
    """The correctly rounded 1 / scale of scales between 2^-60 and 2^125, or NaN.

    A Newton step makes it of the hardware's reciprocal, whose error is below one unit in the last place, except for a
    mantissa of all ones (Markstein 1990), whose reciprocal is one unit above a power of two.
    """
    first = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [scale], tl.float32, True, 1)
    near = tl.fma(first, tl.fma(-scale, first, tl.full(scale.shape, 1.0, tl.float32)), first)
    bits = scale.to(tl.int32, bitcast=True)
    special = (0x7E800001 - (bits & 0x7F800000)).to(tl.float32, bitcast=True)
    return tl.where((bits & 0x7FFFFF) == 0x7FFFFF, special, near)


@triton.jit
def quotient(x, scale, NORMAL: tl.constexpr):
    """The correctly rounded x / scale of rows x [P, E] with |x| <= 1000 * scale [P]; a NaN scale makes its row NaN.

    One reciprocal per row, then per element a residual step, which rounds correctly when the reciprocal does
    (Markstein 1990); written so that it keeps the sign of a zero. Unless NORMAL promises scales of 2^-60 and more,
    both sides are first scaled by the power of two that brings the divisor near 1, so that nothing that matters
    underflows; what underflows then is far below the smallest code.
    """
    wide, divisor = x, scale
    if not NORMAL:
        field = scale.to(tl.int32, bitcast=True) >> 23
        bits = tl.where(field >= 254, 0x400000, (254 - tl.minimum(field, 253)) << 23)
        power = tl.where(field == 0, 0x7F000000, bits).to(tl.float32, bitcast=True)
        wide, divisor = x * power[:, None], scale * power
    near = reciprocal(divisor)
    first = wide * near[:, None]
    rest = tl.fma(first, tl.broadcast_to(divisor[:, None], x.shape), -wide)
    return tl.fma(rest, tl.broadcast_to(-near[:, None], x.shape), first)


@triton.jit
def ue8m0_reciprocal(byte):
    """float32 2^(127 - byte): multiplying by it is dividing by the scale, bit for bit."""
    return ue8m0_decode(tl.where(byte == 255, 255, 254 - byte))


@triton.jit
def ue8m0_quotient(largest, TOP: tl.constexpr):
    """int32 ue8m0 exponent of the rounded largest / TOP, TOP 448 or 6, if it is at least 2^-125; else some int32 <= 2.

    Both are a power of two times 1.75 or 1.5, and the quotient is a power of two exactly when the mantissas are equal.
    """
    shift: tl.constexpr = 8 if TOP == 448.0 else 2
    carry: tl.constexpr = 0x1FFFFF if TOP == 448.0 else 0x3FFFFF
    return ((largest.to(tl.int32, bitcast=True) + carry) >> 23) - shift


@triton.jit
def ue8m0_scaled(x, stored, bad):
    """x [P, E] over the scales of exponents [P] from 1 to 253, exactly; rows that are `bad` become NaN."""
    factor = tl.where(bad, NAN_BITS, (254 - stored) << 23).to(tl.float32, bitcast=True)
    return x * factor[:, None]


@triton.jit
def fp8_blocks(x, floor, UE8M0: tl.constexpr, NORMAL: tl.constexpr):
    """Quantise rows of x [P, E], one block each: (payload uint8 [P, E], scale [P] as stored: float32 or int32 byte).

    NORMAL: the floor keeps scales at 2^-60 and above.
    """
    largest, bad = block_maximum(x)
    largest = tl.maximum(largest, floor)
    if UE8M0 and NORMAL:
        stored = ue8m0_quotient(largest, 448.0)
        value = ue8m0_scaled(x, stored, bad)
        stored = tl.where(bad, 255, stored)
    elif UE8M0:
        stored = tl.where(bad, 255, ue8m0_encode(tl.div_rn(largest, 448.0)))
        value = x * ue8m0_reciprocal(stored)[:, None]
    else:
        ratio = over(largest, 448.0, NORMAL)
        stored = nan_where(bad, tl.where(ratio == 0.0, 1.0, ratio))
        value = quotient(x, stored, NORMAL)
    return e4m3_encode(value), stored  # every value of a bad block is NaN by now, whose code is 0x7F


@triton.jit
def mxfp4_blocks(x):
    """As `fp8_blocks` in e2m1 with exponents of 1 and more: (pairs of codes uint8 [P, E / 2], exponents int32 [P])."""
    largest, bad = block_maximum(x)
    stored = tl.maximum(ue8m0_quotient(largest, 6.0), 1)
    return e2m1_pack(ue8m0_scaled(x, stored, bad), bad, True), tl.where(bad, 255, stored)
