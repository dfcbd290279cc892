"""Device code of the block quantisers: a program takes ROWS x CBS blocks of a matrix, one block per row of its tile.

A block of br x bc values lies in the tile as BRP x BCP (powers of two), masked where it is smaller or ragged.

RUN is how many neighbours one thread takes at a time. The compiler finds it per access from the widest vector; where
the element sizes of source and target differ, the narrower side is told the run of the wider one. Then both sides
place values in the same threads, and nothing passes through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_triton.device.codec import (
    e2m1_decode,
    fp8_blocks,
    mxfp4_blocks,
    ue8m0_decode,
    unpack_pairs,
)


@triton.jit
def locate(grid_rows, grid_cols, lines, tiles, ROWS: tl.constexpr, CBS: tl.constexpr, BATCHED: tl.constexpr):
    """(matrix, block row, block column, exists, index of the block) of the program's ROWS * CBS blocks."""
    index = tl.program_id(0)
    q = tl.arange(0, ROWS * CBS)
    line = (index // tiles) * ROWS + q // CBS
    column = (index % tiles) * CBS + q % CBS
    inside = (line < lines) & (column < grid_cols)
    if BATCHED:
        matrix, row = line // grid_rows, line % grid_rows
    else:
        matrix, row = line * 0, line
    return matrix, row, column, inside, line.to(tl.int64) * grid_cols + column


@triton.jit
def inner(BRP: tl.constexpr, BCP: tl.constexpr):
    """(row, column) inside a block of each element of a tile row."""
    e = tl.arange(0, BRP * BCP)
    return e // BCP, e % BCP


@triton.jit
def cover(matrix, row, column, i, j, inside, rows, cols, br, bc, WHOLE: tl.constexpr, RUN: tl.constexpr = 0):
    """(offset in a contiguous matrix [P, E], mask): WHOLE promises that no block is ragged or padded."""
    m, n = row * br, column * bc
    offset = (matrix.to(tl.int64) * rows + m) * cols + n
    if WHOLE:
        mask = tl.broadcast_to(inside[:, None], [inside.shape[0], i.shape[0]])
    else:
        mask = inside[:, None] & (i < br)[None, :] & (j < bc)[None, :]
        mask = mask & (m[:, None] + i[None, :] < rows) & (n[:, None] + j[None, :] < cols)
    step = i.to(tl.int64) * cols + j
    if RUN > 0:
        step = tl.max_contiguous(step, RUN)
    return offset[:, None] + step[None, :], mask


@triton.jit
def load_tile(x, matrix, row, column, i, j, mask, sb, sr, sc, br, bc, RUN: tl.constexpr = 0):
    """Values [P, E] of strided matrices; what is masked is 0."""
    first = matrix.to(tl.int64) * sb + row.to(tl.int64) * br * sr + column.to(tl.int64) * bc * sc
    step = i.to(tl.int64) * sr + j.to(tl.int64) * sc
    if RUN > 0:
        step = tl.max_contiguous(step, RUN)
    return tl.load(x + first[:, None] + step[None, :], mask=mask, other=0.0)


@triton.jit
def quantize_fp8(
    x, data, scale, sb, sr, sc, rows, cols, br, bc, grid_rows, grid_cols, lines, tiles, floor, ROWS: tl.constexpr,
    CBS: tl.constexpr, BRP: tl.constexpr, BCP: tl.constexpr, BATCHED: tl.constexpr, WHOLE: tl.constexpr,
    UE8M0: tl.constexpr, NORMAL: tl.constexpr,
):
    matrix, row, column, inside, index = locate(grid_rows, grid_cols, lines, tiles, ROWS, CBS, BATCHED)
    i, j = inner(BRP, BCP)
    place, mask = cover(matrix, row, column, i, j, inside, rows, cols, br, bc, WHOLE)
    value = load_tile(x, matrix, row, column, i, j, mask, sb, sr, sc, br, bc).to(tl.float32)
    code, stored = fp8_blocks(value, floor, UE8M0, NORMAL)
    tl.store(data + place, code.to(tl.float8e4nv, bitcast=True), mask=mask)
    tl.store(scale + index, stored.to(scale.dtype.element_ty), mask=inside)


@triton.jit
def quantize_mxfp4(
    x, data, scale, sb, sr, sc, rows, cols, br, bc, grid_rows, grid_cols, lines, tiles, ROWS: tl.constexpr,
    CBS: tl.constexpr, BRP: tl.constexpr, BCP: tl.constexpr, BATCHED: tl.constexpr, WHOLE: tl.constexpr,
    RUN: tl.constexpr,
):
    matrix, row, column, inside, index = locate(grid_rows, grid_cols, lines, tiles, ROWS, CBS, BATCHED)
    i, j = inner(BRP, BCP)
    _, mask = cover(matrix, row, column, i, j, inside, rows, cols, br, bc, WHOLE)
    value = load_tile(x, matrix, row, column, i, j, mask, sb, sr, sc, br, bc).to(tl.float32)
    code, stored = mxfp4_blocks(value)
    i, j = inner(BRP, BCP // 2)
    place, mask = cover(matrix, row, column, i, j, inside, rows, cols // 2, br, bc // 2, WHOLE, RUN // 2)
    tl.store(data + place, code, mask=mask)
    tl.store(scale + index, stored.to(tl.uint8), mask=inside)


@triton.jit
def dequantize(
    data, scale, x, sb, sr, sc, tb, tr, tc, rows, cols, br, bc, grid_rows, grid_cols, lines, tiles, repeat,
    ROWS: tl.constexpr, CBS: tl.constexpr, BRP: tl.constexpr, BCP: tl.constexpr, BATCHED: tl.constexpr,
    WHOLE: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr, RUN: tl.constexpr,
):
    """KIND names the stored scale: "f32", "ue8m0", "e4m3"; `repeat` rows of tiles share one."""
    matrix, row, column, inside, _ = locate(grid_rows, grid_cols, lines, tiles, ROWS, CBS, BATCHED)
    where = matrix.to(tl.int64) * tb + (row // repeat).to(tl.int64) * tr + column.to(tl.int64) * tc
    factor = tl.load(scale + where, mask=inside, other=0.0)
    if KIND == "ue8m0":
        factor = ue8m0_decode(factor.to(tl.int32))
    else:
        factor = factor.to(tl.float32)
    i, j = inner(BRP, BCP)
    place, mask = cover(matrix, row, column, i, j, inside, rows, cols, br, bc, WHOLE)
    if PACKED:
        i, j = inner(BRP, BCP // 2)
        _, half = cover(matrix, row, column, i, j, inside, rows, cols // 2, br, bc // 2, WHOLE)
        code = load_tile(data, matrix, row, column, i, j, half, sb, sr, sc, br, bc // 2, RUN // 2).to(tl.int32)
        value = e2m1_decode(unpack_pairs(code))
    else:
        value = load_tile(data, matrix, row, column, i, j, mask, sb, sr, sc, br, bc, RUN).to(tl.float32)
    tl.store(x + place, (value * factor[:, None]).to(x.dtype.element_ty), mask=mask)


@triton.jit
def pack_scales(
    scale, rows, packed, sb, sr, sc, mn, blocks, words, width, row_tiles, word_tiles, step, MT: tl.constexpr,
    KT: tl.constexpr, UE8M0: tl.constexpr, FOURS: tl.constexpr,
):
    """A tile of MT matrix rows x KT blocks of K, transposed on the way out; a row of scales serves `step` matrix rows.

    FOURS promises that every four blocks of a row are neighbours at an address that is a multiple of four.
    """
    index = tl.program_id(0)
    matrix = (index // (row_tiles * word_tiles)).to(tl.int64)
    m = ((index // word_tiles) % row_tiles) * MT + tl.arange(0, MT)
    tile = index % word_tiles
    k = tile * KT + tl.arange(0, KT)
    limit = mn
    if rows is not None:
        limit = tl.minimum(tl.load(rows + matrix).to(tl.int64), mn).to(tl.int32)
    column = k.to(tl.int64) * sc
    there = k < blocks
    row = (m // step).to(tl.int64) * sr
    if FOURS:
        there = k // 4 < blocks // 4
    valid = (m < limit)[:, None] & there[None, :]
    first = matrix * sb + row
    if FOURS:
        first = tl.multiple_of(first, 4)
    # outside lies 2^-127, whose byte is 0
    value = tl.load(scale + first[:, None] + column[None, :], mask=valid, other=5.877471754111438e-39 if UE8M0 else 0.0)
    if UE8M0:
        bits = value.to(tl.uint32, bitcast=True)
        # what is no power of two has a mantissa, or no exponent (0, negative, infinite, NaN); 2^-127 is subnormal
        exact = ((bits & 0x7FFFFF) == 0) & (bits - 0x800000 < 0x7F000000) | (bits == 0x400000)
        byte = tl.where(exact, bits >> 23, 255).to(tl.int32) << ((k % 4) * 8)[None, :]
        made = tl.trans(tl.sum(tl.reshape(byte, [MT, KT // 4, 4]), axis=2))
        w = tile * (KT // 4) + tl.arange(0, KT // 4)
    else:
        made = tl.trans(value)
        w = k
    target = (matrix * words + w.to(tl.int64))[:, None] * width + m[None, :]
    tl.store(packed + target, made, mask=(w < words)[:, None] & (m < width)[None, :])
