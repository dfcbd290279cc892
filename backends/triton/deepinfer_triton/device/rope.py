"""Device code of the rotary embedding: HEADS-by-token rows, the rotated channels at their end."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply(
    x, positions, table, y, xt, xh, yt, yh, rows, kept, half, limit, table_step, position_step, heads, inverse,
    ROWS: tl.constexpr, KEPT: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
):
    """All loads come before the first store: in between the compiler would keep their order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    token, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    source, target = x + (token * xt + head * xh)[:, None], y + (token * yt + head * yh)[:, None]
    plain = tl.arange(0, max(KEPT, 1))[None, :]
    plain_mask = there[:, None] & (plain < kept)
    if KEPT > 0:
        same_value = tl.load(source + plain, mask=plain_mask)
    if HALF > 0:
        position = tl.load(positions + token * position_step, mask=there, other=-1).to(tl.int64)
        known = there & (position >= 0) & (position < limit)
        k = tl.arange(0, HALF)[None, :]
        pair = there[:, None] & (k < half)
        angle = table + (tl.where(known, position, 0) * table_step)[:, None] + k
        asked = known[:, None] & pair
        if INTERLEAVED:
            column = tl.arange(0, 2 * HALF)[None, :]
            wide = there[:, None] & (column < 2 * half)
            value = tl.load(source + kept + column, mask=wide, other=0.0)
            first, second = tl.split(tl.reshape(value, [ROWS, HALF, 2]))
        else:
            first = tl.load(source + kept + k, mask=pair, other=0.0)
            second = tl.load(source + kept + half + k, mask=pair, other=0.0)
        cos = tl.load(angle, mask=asked, other=1.0)
        sin = tl.load(angle + half, mask=asked, other=0.0)
        if inverse:
            sin = -sin
        a, b = first.to(tl.float32), second.to(tl.float32)
        same = tl.broadcast_to(known[:, None], [ROWS, HALF])
        low = tl.where(same, (a * cos - b * sin).to(y.dtype.element_ty), first)
        high = tl.where(same, (b * cos + a * sin).to(y.dtype.element_ty), second)
        if INTERLEAVED:
            tl.store(target + kept + column, tl.interleave(low, high), mask=wide)
        else:
            tl.store(target + kept + k, low, mask=pair)
            tl.store(target + kept + half + k, high, mask=pair)
    if KEPT > 0:
        tl.store(target + plain, same_value, mask=plain_mask)
