"""Device code of the cache writer and reader and of state merging.

A program of the quantised paths takes ROWS tokens; its tile [ROWS * TILES, TILE] holds one scale block per row. Byte
positions inside a record (or inside the data and scale rows of a split block) come as numbers from the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_triton.device.codec import (
    block_maximum,
    e2m1_decode,
    e2m1_pack,
    e4m3_decode,
    e4m3_encode,
    nan_where,
    over,
    quotient,
    ue8m0_decode,
    ue8m0_quotient,
    ue8m0_scaled,
    unpack_pairs,
)


@triton.jit
def place_of(slots, token, there, slot_step, capacity, block_step, data_step, scale_step, page):
    """(slot exists, offset of its data row, offset of its scale row) of tokens; scale rows count from `scale_first`."""
    slot = tl.load(slots + token.to(tl.int64) * slot_step, mask=there, other=-1).to(tl.int64)
    exists = (slot >= 0) & (slot < capacity)
    inside = tl.where(exists, slot, 0).to(tl.uint32)  # capacities fit; a constant page makes the division cheap
    size = tl.cast(page, tl.uint32)
    block, offset = (inside // size).to(tl.int64), (inside % size).to(tl.int64)
    return exists, block * block_step + offset * data_step, block * block_step + offset * scale_step


@triton.jit
def scaled_by(value, largest, bad, SCALE: tl.constexpr, FLOOR: tl.constexpr, LEAST: tl.constexpr, TOP: tl.constexpr):
    """(value over the scale of its row, NaN in bad rows; the scale as stored: float32 or int32 byte) of rows [P, E].

    FLOOR bounds maxima from below, LEAST bounds ue8m0 exponents.
    """
    ratio = over(tl.maximum(largest, FLOOR), TOP, FLOOR >= 2.0**-50)
    if SCALE == "f32":
        stored = nan_where(bad, tl.where(ratio == 0.0, 1.0, ratio))
        made = quotient(value, stored, FLOOR >= 2.0**-50)
    elif SCALE == "e4m3":
        code = e4m3_encode(ratio)
        stored = tl.where(bad, 0x7F, code.to(tl.int32))
        made = quotient(value, nan_where(bad, e4m3_decode(code)), FLOOR >= 2.0**-50)
    else:
        exponent = tl.maximum(ue8m0_quotient(largest, TOP), LEAST)
        stored = tl.where(bad, 0xFF, exponent)
        made = ue8m0_scaled(value, exponent, bad)
    return made, stored


@triton.jit
def each_tile(value, TILES: tl.constexpr, ALIGN: tl.constexpr = 1):
    """Values of tokens [ROWS], multiples of ALIGN, for each of their tiles, [ROWS * TILES].

    The compiler loses sight of divisibility here, and only where it sees it vectors are wide.
    """
    rows: tl.constexpr = value.shape[0]
    made = value
    if TILES > 1:
        made = tl.reshape(tl.broadcast_to(value[:, None], [rows, TILES]), [rows * TILES])
    if TILES > 1 and ALIGN > 1:
        made = tl.multiple_of(made, ALIGN)
    return made


@triton.jit
def write_plain(
    kv_cache, rows, slots, count, width, row_step, row_column, slot_step, capacity, block_step, data_step,
    page, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    column = tl.arange(0, BLOCK)
    mask = there[:, None] & (column < width)[None, :]
    source = rows + (token.to(tl.int64) * row_step)[:, None] + column.to(tl.int64)[None, :] * row_column
    value = tl.load(source, mask=mask, other=0.0).to(kv_cache.dtype.element_ty)  # does not wait for the slots
    exists, first, _ = place_of(slots, token, there, slot_step, capacity, block_step, data_step, data_step, page)
    tl.store(kv_cache + first[:, None] + column[None, :], value, mask=mask & exists[:, None])


@triton.jit
def read_plain(
    kv_cache, slots, rows, count, width, slot_step, capacity, block_step, data_step, page,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    exists, first, _ = place_of(slots, token, there, slot_step, capacity, block_step, data_step, data_step, page)
    column = tl.arange(0, BLOCK)
    inside = there[:, None] & (column < width)[None, :]
    value = tl.load(kv_cache + first[:, None] + column[None, :], mask=inside & exists[:, None], other=0.0)
    target = rows + (token.to(tl.int64) * width)[:, None] + column[None, :]
    tl.store(target, value.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def write_coded(
    kv_cache, rows, slots, count, row_step, row_column, slot_step, capacity, block_step, data_step, scale_step,
    scale_first, plain_first, tiles, coded, page, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
    PLAIN: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr, FLOOR: tl.constexpr, LEAST: tl.constexpr,
    TOP: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr,
):
    """Rows are loaded before the slots are known."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    q = tl.arange(0, ROWS * TILES)
    owner, tile = tl.program_id(0) * ROWS + q // TILES, q % TILES
    loaded = (owner < count) & (tile < tiles)
    j = tl.arange(0, TILE)
    source = rows + (owner.to(tl.int64) * row_step + tile * TILE * row_column)[:, None] + j.to(tl.int64) * row_column
    value = tl.load(source, mask=tl.broadcast_to(loaded[:, None], [ROWS * TILES, TILE]), other=0.0).to(tl.float32)
    if PLAIN > 0:
        c = tl.arange(0, PLAIN)
        source = rows + (token.to(tl.int64) * row_step)[:, None] + (coded + c).to(tl.int64)[None, :] * row_column
        plain = tl.load(source, mask=tl.broadcast_to(there[:, None], [ROWS, PLAIN]), other=0.0)
    exists, data, scale = place_of(slots, token, there, slot_step, capacity, block_step, data_step, scale_step, page)
    if PLAIN > 0:
        target = (kv_cache + (data + plain_first)).to(tl.pointer_type(tl.int16))[:, None] + c[None, :]
        bits = plain.to(tl.bfloat16).to(tl.int16, bitcast=True)
        bits = tl.where(plain == plain, bits, 0x7FC0).to(tl.int16)  # one NaN for all
        tl.store(target, bits, mask=tl.broadcast_to((there & exists)[:, None], [ROWS, PLAIN]))
    largest, bad = block_maximum(value)
    made, stored = scaled_by(value, largest, bad, SCALE, FLOOR, LEAST, TOP)
    used = loaded & each_tile(exists, TILES)
    if BITS == 8:
        code = e4m3_encode(made)
        k = j
    else:
        code = e2m1_pack(made, bad, SCALE == "ue8m0")
        k = tl.max_contiguous(tl.arange(0, TILE // 2), RUN // 2)
    tl.store(kv_cache + (each_tile(data, TILES, ALIGN) + tile * (TILE * BITS // 8))[:, None] + k[None, :], code,
             mask=tl.broadcast_to(used[:, None], code.shape))
    scales = kv_cache + each_tile(scale, TILES) + scale_first
    if SCALE == "f32":
        tl.store((scales + tile * 4).to(tl.pointer_type(tl.float32)), stored, mask=used)
    else:
        tl.store(scales + tile, stored.to(tl.uint8), mask=used)


@triton.jit
def read_coded(
    kv_cache, slots, rows, count, slot_step, capacity, block_step, data_step, scale_step, scale_first, plain_first,
    tiles, coded, width, page, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr, PLAIN: tl.constexpr,
    BITS: tl.constexpr, SCALE: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    exists, data, scale = place_of(slots, token, there, slot_step, capacity, block_step, data_step, scale_step, page)
    q = tl.arange(0, ROWS * TILES)
    owner, tile = tl.program_id(0) * ROWS + q // TILES, q % TILES
    wanted = (owner < count) & (tile < tiles)
    used = wanted & each_tile(exists, TILES)
    first = kv_cache + (each_tile(data, TILES, ALIGN) + tile * (TILE * BITS // 8))[:, None]
    j = tl.max_contiguous(tl.arange(0, TILE * BITS // 8), RUN * BITS // 8)
    code = tl.load(first + j[None, :], mask=used[:, None], other=0)
    scales = kv_cache + each_tile(scale, TILES) + scale_first
    if SCALE == "f32":
        factor = tl.load((scales + tile * 4).to(tl.pointer_type(tl.float32)), mask=used, other=0.0)
    else:
        byte = tl.load(scales + tile, mask=used, other=0)
        factor = e4m3_decode(byte) if SCALE == "e4m3" else ue8m0_decode(byte.to(tl.int32))
    if PLAIN > 0:
        c = tl.arange(0, PLAIN)
        source = (kv_cache + (data + plain_first)).to(tl.pointer_type(tl.bfloat16))[:, None] + c[None, :]
        plain = tl.load(source, mask=(there & exists)[:, None], other=0.0)
    if BITS == 8:
        value = e4m3_decode(code)
    else:
        value = e2m1_decode(unpack_pairs(code.to(tl.int32)))
    value = tl.where(used[:, None], value * factor[:, None], 0.0)
    target = rows + (owner.to(tl.int64) * width + tile * TILE)[:, None] + tl.arange(0, TILE)[None, :]
    tl.store(target, value.to(rows.dtype.element_ty), mask=tl.broadcast_to(wanted[:, None], [ROWS * TILES, TILE]))
    if PLAIN > 0:
        target = rows + (token.to(tl.int64) * width + coded)[:, None] + c[None, :]
        tl.store(target, plain.to(rows.dtype.element_ty), mask=tl.broadcast_to(there[:, None], [ROWS, PLAIN]))


@triton.jit
def merge_states(
    outs, lses, attn_sink, out, lse, lines, tokens, heads, width, out_state, out_lead, out_token, out_head,
    lse_state, lse_lead, lse_token, lse_head, sink_step, states, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Rows (lead, token, head) of the merged result; an empty state's out does not count, whatever it is."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < lines
    head, line = (row % heads).to(tl.int64), row // heads
    token, lead = (line % tokens).to(tl.int64), (line // tokens).to(tl.int64)
    where = lses + lead * lse_lead + token * lse_token + head * lse_head
    column = tl.arange(0, BLOCK)
    mask = there[:, None] & (column < width)[None, :]
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for i in tl.range(states, loop_unroll_factor=UNROLL):
        top = tl.maximum(top, tl.load(where + i * lse_state, mask=there, other=float("-inf")))
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([ROWS], dtype=tl.float32)
    merged = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    source = outs + (lead * out_lead + token * out_token + head * out_head)[:, None] + column[None, :]
    for i in tl.range(states, loop_unroll_factor=UNROLL):
        # loaded whatever the weight is, so that the loads of all states are on their way together
        part = tl.load(source + tl.cast(i, tl.int64) * out_state, mask=mask, other=0.0).to(tl.float32)
        weight = tl.exp(tl.load(where + i * lse_state, mask=there, other=float("-inf")) - base)
        total += weight
        merged += tl.where((weight != 0.0)[:, None], part, 0.0) * tl.where(weight != 0.0, weight, 0.0)[:, None]
    joined = tl.where(total == 0.0, float("-inf"), base + tl.log(total))
    share = tl.div_rn(1.0, tl.where(total == 0.0, 1.0, total))
    if attn_sink is not None:
        sink = tl.load(attn_sink + head * sink_step, mask=there, other=0.0)
        part = tl.div_rn(1.0, 1.0 + tl.exp(sink - joined))
        share = share * tl.where(joined == float("-inf"), 1.0, part)
    target = out + (row.to(tl.int64) * width)[:, None] + column[None, :]
    tl.store(target, (merged * share[:, None]).to(out.dtype.element_ty), mask=mask)
    tl.store(lse + (lead * heads + head) * tokens + token, joined, mask=there)
