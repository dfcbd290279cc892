"""Device code of the rotary embedding: HEADS-by-token rows, the rotated channels at their end."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply(
    x, positions, table, y, xt, xh, yt, yh, rows, heads, kept, half, limit, table_step, position_step,
    ROWS: tl.constexpr, KEPT: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    token, head = row // heads, row % heads
    source = x + (token.to(tl.int64) * xt + head.to(tl.int64) * xh)[:, None]
    target = y + (token.to(tl.int64) * yt + head.to(tl.int64) * yh)[:, None]
    if KEPT > 0:
        column = tl.arange(0, KEPT)
        mask = there[:, None] & (column < kept)[None, :]
        tl.store(target + column[None, :], tl.load(source + column[None, :], mask=mask), mask=mask)
    if HALF > 0:
        position = tl.load(positions + token.to(tl.int64) * position_step, mask=there, other=-1).to(tl.int64)
        known = there & (position >= 0) & (position < limit)
        k = tl.arange(0, HALF)
        pair = there[:, None] & (k < half)[None, :]
        angle = table + (tl.where(known, position, 0) * table_step)[:, None] + k[None, :]
        asked = known[:, None] & pair
        cos = tl.load(angle, mask=asked, other=1.0)
        sin = tl.load(angle + half, mask=asked, other=0.0)
        if INVERSE:
            sin = -sin
        if INTERLEAVED:
            column = kept + tl.arange(0, 2 * HALF)
            mask = there[:, None] & (column < kept + 2 * half)[None, :]
            value = tl.load(source + column[None, :], mask=mask, other=0.0)
            first, second = tl.split(tl.reshape(value.to(tl.float32), [ROWS, HALF, 2]))
            made = tl.interleave(first * cos - second * sin, second * cos + first * sin)
            same = tl.broadcast_to(known[:, None], [ROWS, 2 * HALF])
            tl.store(target + column[None, :], tl.where(same, made.to(y.dtype.element_ty), value), mask=mask)
        else:
            low, high = kept + k[None, :], kept + half + k[None, :]
            first = tl.load(source + low, mask=pair, other=0.0)
            second = tl.load(source + high, mask=pair, other=0.0)
            a, b = first.to(tl.float32), second.to(tl.float32)
            same = tl.broadcast_to(known[:, None], [ROWS, HALF])
            tl.store(target + low, tl.where(same, (a * cos - b * sin).to(y.dtype.element_ty), first), mask=pair)
            tl.store(target + high, tl.where(same, (b * cos + a * sin).to(y.dtype.element_ty), second), mask=pair)
