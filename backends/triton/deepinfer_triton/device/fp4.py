"""Device code of fp4 in pairs: bf16 stays packed two to a register, eight values make one word of codes.

A tile holds one scale block per row, [P, E / 8] groups of eight values: four words of bf16 pairs, or one word of codes,
value i in nibble i. A thread owns whole groups, so that values go from vector loads to vector stores in registers.
Instructions on packed halves halve the arithmetic; results are those of `codec`, bit for bit (see each function).
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_triton.device.codec import e4m3_decode, e4m3_encode, over, ue8m0_decode
from deepinfer_triton.device.kv import each_tile, place_of
from deepinfer_triton.device.quant import locate

# c0 to c3 hold codes of (even, odd) values in bytes 0 and 2; $5 to $8 are the values, whose signs join the codes. The
# nibbles are made at the top of bytes, where signs lie: even ones move down last. $10 clears rows that are bad.
_PACK = tl.constexpr("""
    prmt.b32 c0, c0, c1, 0x6240;
    prmt.b32 c2, c2, c3, 0x6240;
    shl.b32 c0, c0, 4;
    shl.b32 c2, c2, 4;
    prmt.b32 s, $5, $6, 0x7351;
    prmt.b32 t, $7, $8, 0x7351;
    lop3.b32 c0, c0, s, 0x80808080, 0xF8;
    lop3.b32 c2, c2, t, 0x80808080, 0xF8;
    prmt.b32 s, c0, c2, 0x5410;
    prmt.b32 t, c0, c2, 0x7632;
    shr.u32 s, s, 4;
    lop3.b32 $0, t, s, $10, 0xA8;
}""")
_POWER = tl.constexpr("""{
    .reg .b32 g<3>, k<3>, c<4>, s, t;
    mov.b32 k0, 0x3D003D00;
    mov.b32 k1, 0x3C803C80;
    mov.b32 k2, 0x3C003C00;
    mul.rn.bf16x2 g0, $9, k0;
    mul.rn.bf16x2 g1, $9, k1;
    mul.rn.bf16x2 g2, $9, k2;
    mov.b32 k0, 0x40004000;
    mov.b32 k1, 0x40024002;
    mov.b32 k2, 0x40044004;
""" + "".join(f"""
    fma.rn.bf16x2 s, ${i + 1}, g0, k0;
    fma.rn.bf16x2 t, ${i + 1}, g1, k1;
    min.u16x2 s, s, t;
    fma.rn.bf16x2 t, ${i + 1}, g2, k2;
    min.u16x2 c{i}, s, t;
""" for i in range(4)) + _PACK.value)
_FACTOR = tl.constexpr("""{
    .reg .b32 k<6>, c<4>, s, t;
    .reg .f32 a, b;
    mov.b32 k0, 0x40004000;
    mov.b32 k1, 0x64006400;
    mov.b32 k2, 0x64026402;
    mov.b32 k3, 0x38003800;
    mov.b32 k4, 0x64046404;
    mov.b32 k5, 0x64076407;
""" + "".join(f"""
    shl.b32 s, ${i + 1}, 16;
    and.b32 t, ${i + 1}, 0xFFFF0000;
    mov.b32 a, s;
    mov.b32 b, t;
    mul.f32 a, a, $9;
    mul.f32 b, b, $9;
    cvt.rn.f16x2.f32 c{i}, b, a;
    fma.rn.f16x2 s, c{i}, k0, k1;
    add.rn.f16x2 t, c{i}, k2;
    min.u16x2 s, s, t;
    fma.rn.f16x2 t, c{i}, k3, k4;
    min.u16x2 s, s, t;
    min.u16x2 c{i}, s, k5;
""" for i in range(4)) + _PACK.value)
_LARGEST = tl.constexpr("""{
    .reg .b32 t;
    max.u16x2 t, $1, $2;
    max.u16x2 $0, $3, $4;
    max.u16x2 $0, $0, t;
}""")
# Values 2^126 times smaller have the codes as bits: sign, exponent and mantissa are neighbours in both.
_DECODE = tl.constexpr("""{
    .reg .b32 q<4>, t, u, k;
    mov.b32 k, 0x7E807E80;
""" + "".join(f"""
    {f"shl.b32 t, $4, {6 - 4 * i}" if i < 2 else f"shr.u32 t, $4, {4 * i - 6}"};
    shl.b32 u, $4, {12 - 4 * i};
    and.b32 t, t, 0x01C001C0;
    lop3.b32 q{i}, t, u, 0x80008000, 0xF8;
    mul.rn.bf16x2 q{i}, q{i}, k;
    mul.rn.bf16x2 q{i}, q{i}, $5;
""" for i in range(4)) + """
    prmt.b32 $0, q0, q1, 0x5410;
    prmt.b32 $1, q2, q3, 0x5410;
    prmt.b32 $2, q0, q1, 0x7632;
    prmt.b32 $3, q2, q3, 0x7632;
}""")


@triton.jit
def quarters(words):
    """Words [P, G, 4] -> four of [P, G]."""
    even, odd = tl.split(tl.reshape(words, [words.shape[0], words.shape[1], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def sizes(words):
    """Magnitudes of pairs of bf16; as unsigned numbers they are in the order of the values, NaN last."""
    return words & 0x7FFF7FFF


@triton.jit
def largest_bits(a, b, c, d):
    """int32 bits of the largest magnitude of each row, from 0x7F80 on if the row holds NaN or inf."""
    both = tl.inline_asm_elementwise(_LARGEST, "=&r,r,r,r,r", [a, b, c, d], tl.int32, True, 1)
    return tl.max(tl.maximum(both >> 16, both & 0xFFFF), axis=1)


@triton.jit
def each_group(value, like):
    return tl.broadcast_to(value[:, None], like.shape)


@triton.jit
def pack_over_power(words, exponent, bad):
    """int32 words of codes [P, G] of bf16 pairs [P, G, 4] over powers of two, ue8m0 exponents [P] from 1 to 253.

    As `codec.e2m1_steps`, in units of 2^-6 above 2, where bf16 has whole steps; the product in a fused one is exact.
    """
    w0, w1, w2, w3 = quarters(words)
    factor = (254 - exponent) * 0x800080
    keep = tl.where(bad, 0, -1)
    arguments = [sizes(w0), sizes(w1), sizes(w2), sizes(w3), w0, w1, w2, w3, each_group(factor, w0),
                 each_group(keep, w0)]
    return tl.inline_asm_elementwise(_POWER, "=r,r,r,r,r,r,r,r,r,r,r", arguments, tl.int32, True, 1)


@triton.jit
def pack_over_scale(words, scale, bad):
    """As `pack_over_power` for float32 scales [P] that are e4m3 numbers.

    What decides are the ties: value = threshold * scale. Both sides are numbers of at most 8 bits, so that a quotient
    that is no threshold is 2^-8 of it away, and one computed within 2^-20 becomes in f16 (11 bits) the threshold itself
    where it is one, and stays on its side where not. Codes are whole steps above 1024.
    """
    w0, w1, w2, w3 = quarters(words)
    near = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [scale], tl.float32, True, 1)
    keep = tl.where(bad, 0, -1)
    arguments = [sizes(w0), sizes(w1), sizes(w2), sizes(w3), w0, w1, w2, w3, each_group(near, w0), each_group(keep, w0)]
    return tl.inline_asm_elementwise(_FACTOR, "=r,r,r,r,r,r,r,r,r,f,r", arguments, tl.int32, True, 1)


@triton.jit
def unpack_times(codes, factor):
    """int32 words of bf16 pairs [N, 4] of words of codes [N] times float32 factors [N].

    Exact: factors are powers of two or e4m3 numbers, and products of at most 6 bits are bf16.
    """
    bits = (factor.to(tl.uint32, bitcast=True) >> 16).to(tl.int32)
    first, second, third, fourth = tl.inline_asm_elementwise(
        _DECODE, "=&r,=&r,=&r,=&r,r,r", [codes, bits * 0x10001], (tl.int32, tl.int32, tl.int32, tl.int32), True, 1
    )
    words = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(words, [codes.shape[0], 4])


@triton.jit
def power_of(bits, LEAST: tl.constexpr):
    """ue8m0 exponent of the rounded bf16 magnitude / 6, as `codec.ue8m0_quotient` finds it."""
    return tl.maximum(((bits + 0x3F) >> 7) - 2, LEAST)


@triton.jit
def group_places(first, G: tl.constexpr):
    """(offsets [P, G] of groups as words of codes, given that of their rows; offsets [G, 4] inside a row of pairs)."""
    g = tl.arange(0, G)
    return first[:, None] + g[None, :], (g * 4)[:, None] + tl.arange(0, 4)[None, :]


@triton.jit
def quantize_pairs(
    x, data, scale, sb, sr, rows, cols, grid_rows, grid_cols, lines, tiles, ROWS: tl.constexpr, CBS: tl.constexpr,
    BC: tl.constexpr, BATCHED: tl.constexpr,
):
    """quant.quantize_mxfp4 of bf16 in blocks of 1 x BC; strides and `cols` count groups of eight values."""
    matrix, row, column, inside, index = locate(grid_rows, grid_cols, lines, tiles, ROWS, CBS, BATCHED)
    groups: tl.constexpr = BC // 8
    source = matrix.to(tl.int64) * sb + row.to(tl.int64) * sr + column * groups
    target = (matrix.to(tl.int64) * rows + row) * cols + column * groups
    places, inner = group_places(target, groups)
    pointers = x.to(tl.pointer_type(tl.int32)) + tl.multiple_of(source * 4, 4)[:, None, None] + inner[None, :, :]
    words = tl.load(pointers, mask=inside[:, None, None], other=0)
    w0, w1, w2, w3 = quarters(words)
    bits = largest_bits(sizes(w0), sizes(w1), sizes(w2), sizes(w3))
    bad = bits >= 0x7F80
    stored = power_of(bits, 1)
    codes = pack_over_power(words, stored, bad)
    tl.store(data.to(tl.pointer_type(tl.int32)) + places, codes, mask=inside[:, None])
    tl.store(scale + index, tl.where(bad, 255, stored).to(tl.uint8), mask=inside)


@triton.jit
def write_pairs(
    kv_cache, rows, slots, count, row_step, slot_step, capacity, block_step, data_step, scale_step, scale_first,
    page, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr, SCALE: tl.constexpr, FLOOR: tl.constexpr,
    LEAST: tl.constexpr, ALIGN: tl.constexpr,
):
    """flash_mla.kv_cache_write of fp4 formats from bf16 rows; `row_step` counts groups of eight values."""
    groups: tl.constexpr = TILE // 8
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    q = tl.arange(0, ROWS * TILES)
    owner, tile = tl.program_id(0) * ROWS + q // TILES, q % TILES
    loaded = owner < count
    source = owner.to(tl.int64) * row_step + tile * groups
    inner = group_places(tile, groups)[1]
    pointers = rows.to(tl.pointer_type(tl.int32)) + tl.multiple_of(source * 4, 4)[:, None, None] + inner[None, :, :]
    words = tl.load(pointers, mask=loaded[:, None, None], other=0)
    exists, data, scale = place_of(
        slots, token, token < count, slot_step, capacity, block_step, data_step, scale_step, page
    )
    w0, w1, w2, w3 = quarters(words)
    bits = largest_bits(sizes(w0), sizes(w1), sizes(w2), sizes(w3))
    bad = bits >= 0x7F80
    if SCALE == "e4m3":
        largest = tl.where(bad, 0, bits << 16).to(tl.float32, bitcast=True)
        byte = e4m3_encode(over(tl.maximum(largest, FLOOR), 6.0, True))
        codes = pack_over_scale(words, e4m3_decode(byte), bad)
        stored = tl.where(bad, 0x7F, byte.to(tl.int32))
    else:
        stored = power_of(bits, LEAST)
        codes = pack_over_power(words, stored, bad)
        stored = tl.where(bad, 0xFF, stored)
    used = loaded & each_tile(exists, TILES)
    target = (each_tile(data, TILES) + tile * (TILE // 2)) // 4
    places = group_places(tl.multiple_of(target, ALIGN // 4), groups)[0]
    tl.store(kv_cache.to(tl.pointer_type(tl.int32)) + places, codes, mask=used[:, None])
    tl.store(kv_cache + each_tile(scale, TILES) + scale_first + tile, stored.to(tl.uint8), mask=used)


@triton.jit
def read_pairs(
    kv_cache, slots, rows, count, slot_step, capacity, block_step, data_step, scale_step, scale_first,
    page, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr, SCALE: tl.constexpr,
):
    """flash_mla.kv_cache_read of fp4 formats into bf16 rows; a slot outside the cache reads as codes and scales of 0.

    A word of codes per thread at a time: its values are one vector, and neighbours are stored by neighbours.
    """
    groups: tl.constexpr = TILES * TILE // 8
    n = tl.arange(0, ROWS * groups)
    token, word = tl.program_id(0) * ROWS + n // groups, n % groups
    there = token < count
    exists, data, scale = place_of(slots, token, there, slot_step, capacity, block_step, data_step, scale_step, page)
    used = there & exists
    place = tl.max_contiguous(data // 4 + word, 1)
    codes = tl.load(kv_cache.to(tl.pointer_type(tl.int32)) + place, mask=used, other=0)
    byte = tl.load(kv_cache + scale + (scale_first + word // (TILE // 8)), mask=used, other=0)
    factor = e4m3_decode(byte) if SCALE == "e4m3" else ue8m0_decode(byte.to(tl.int32))
    words = unpack_times(codes, factor)
    target = (token.to(tl.int64) * groups + word)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(rows.to(tl.pointer_type(tl.int32)) + target, words, mask=there[:, None])
