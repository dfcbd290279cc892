"""Device code of the cache writer and reader and of state merging.

A program of the quantised paths takes ROWS tokens; its tile [ROWS * TILES, TILE] holds one scale block per row. Byte
positions inside a record (or inside the data and scale rows of a split block) come as numbers from the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from deepinfer_triton.device.codec import (
    INF_BITS,
    e2m1_decode,
    e2m1_encode,
    e4m3_decode,
    e4m3_encode,
    magnitude_bits,
    nan_where,
    pack_pairs,
    quotient,
    ue8m0_decode,
    ue8m0_encode,
    ue8m0_reciprocal,
    unpack_pairs,
)


@triton.jit
def place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, scale_step):
    """(slot exists, offset of its data row, offset of its scale row) of tokens; scale rows count from `scale_first`."""
    slot = tl.load(slots + token.to(tl.int64) * slot_step, mask=there, other=-1).to(tl.int64)
    exists = (slot >= 0) & (slot < capacity)
    inside = tl.where(exists, slot, 0)
    block, offset = inside // page, inside % page
    return exists, block * block_step + offset * data_step, block * block_step + offset * scale_step


@triton.jit
def scale_of(largest, SCALE: tl.constexpr, FLOOR: tl.constexpr, SCALE_FLOOR: tl.constexpr, TOP: tl.constexpr):
    """(stored scale: float32 or int32 byte, its value) of finite block maxima."""
    ratio = tl.div_rn(tl.maximum(largest, FLOOR), TOP)
    if SCALE == "f32":
        value = tl.where(ratio == 0.0, 1.0, ratio)
        stored = value
    elif SCALE == "e4m3":
        code = e4m3_encode(ratio)
        stored, value = code.to(tl.int32), e4m3_decode(code)
    else:
        stored = ue8m0_encode(tl.maximum(ratio, SCALE_FLOOR))
        value = ue8m0_decode(stored)
    return stored, value


@triton.jit
def write_plain(
    kv_cache, rows, slots, count, width, row_step, row_column, slot_step, capacity, page, block_step, data_step,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    exists, first, _ = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, data_step)
    column = tl.arange(0, BLOCK)
    mask = (there & exists)[:, None] & (column < width)[None, :]
    source = rows + (token.to(tl.int64) * row_step)[:, None] + column.to(tl.int64)[None, :] * row_column
    value = tl.load(source, mask=mask, other=0.0).to(kv_cache.dtype.element_ty)
    tl.store(kv_cache + first[:, None] + column[None, :], value, mask=mask)


@triton.jit
def read_plain(
    kv_cache, slots, rows, count, width, slot_step, capacity, page, block_step, data_step, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = token < count
    exists, first, _ = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, data_step)
    column = tl.arange(0, BLOCK)
    inside = there[:, None] & (column < width)[None, :]
    value = tl.load(kv_cache + first[:, None] + column[None, :], mask=inside & exists[:, None], other=0.0)
    target = rows + (token.to(tl.int64) * width)[:, None] + column[None, :]
    tl.store(target, value.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def write_coded(
    kv_cache, rows, slots, count, row_step, row_column, slot_step, capacity, page, block_step, data_step, scale_step,
    scale_first, plain_first, tiles, coded, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
    PLAIN: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr, FLOOR: tl.constexpr, SCALE_FLOOR: tl.constexpr,
    TOP: tl.constexpr,
):
    q = tl.arange(0, ROWS * TILES)
    token, tile = tl.program_id(0) * ROWS + q // TILES, q % TILES
    there = (token < count) & (tile < tiles)
    exists, data, scale = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, scale_step)
    used = there & exists
    j = tl.arange(0, TILE)
    source = rows + (token.to(tl.int64) * row_step + tile * TILE * row_column)[:, None] + j.to(tl.int64) * row_column
    value = tl.load(source, mask=tl.broadcast_to(used[:, None], [ROWS * TILES, TILE]), other=0.0).to(tl.float32)
    largest = tl.max(magnitude_bits(value), axis=1)
    bad = largest >= INF_BITS
    size = tl.where(bad, 0, largest).to(tl.float32, bitcast=True)
    stored, factor = scale_of(size, SCALE, FLOOR, SCALE_FLOOR, TOP)
    if SCALE == "ue8m0":
        scaled = value * ue8m0_reciprocal(stored)[:, None]
    else:
        scaled = quotient(value, factor)
    if BITS == 8:
        code = tl.where(bad[:, None], 0x7F, e4m3_encode(scaled).to(tl.int32)).to(tl.uint8)
        k = j
    else:
        code = pack_pairs(tl.where(bad[:, None], 0, e2m1_encode(scaled)))
        k = tl.arange(0, TILE // 2)
    tl.store(kv_cache + (data + tile * (TILE * BITS // 8))[:, None] + k[None, :], code,
             mask=tl.broadcast_to(used[:, None], code.shape))
    if SCALE == "f32":
        target = (kv_cache + scale + scale_first + tile * 4).to(tl.pointer_type(tl.float32))
        tl.store(target, nan_where(bad, stored), mask=used)
    else:
        broken: tl.constexpr = 0x7F if SCALE == "e4m3" else 0xFF
        tl.store(kv_cache + scale + scale_first + tile, tl.where(bad, broken, stored).to(tl.uint8), mask=used)
    if PLAIN > 0:
        token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        there = token < count
        exists, data, _ = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, scale_step)
        c = tl.arange(0, PLAIN)
        mask = tl.broadcast_to((there & exists)[:, None], [ROWS, PLAIN])
        source = rows + (token.to(tl.int64) * row_step)[:, None] + (coded + c).to(tl.int64)[None, :] * row_column
        target = (kv_cache + (data + plain_first)[:, None] + 2 * c[None, :]).to(tl.pointer_type(tl.int16))
        value = tl.load(source, mask=mask, other=0.0)
        bits = value.to(tl.bfloat16).to(tl.int16, bitcast=True)
        tl.store(target, tl.where(value == value, bits, 0x7FC0).to(tl.int16), mask=mask)  # one NaN for all


@triton.jit
def read_coded(
    kv_cache, slots, rows, count, slot_step, capacity, page, block_step, data_step, scale_step, scale_first,
    plain_first, tiles, coded, width, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
    PLAIN: tl.constexpr, BITS: tl.constexpr, SCALE: tl.constexpr,
):
    q = tl.arange(0, ROWS * TILES)
    token, tile = tl.program_id(0) * ROWS + q // TILES, q % TILES
    there = (token < count) & (tile < tiles)
    exists, data, scale = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, scale_step)
    used = there & exists
    if SCALE == "f32":
        place = (kv_cache + scale + scale_first + tile * 4).to(tl.pointer_type(tl.float32))
        factor = tl.load(place, mask=used, other=0.0)
    else:
        byte = tl.load(kv_cache + scale + scale_first + tile, mask=used, other=0)
        factor = e4m3_decode(byte) if SCALE == "e4m3" else ue8m0_decode(byte.to(tl.int32))
    first = kv_cache + (data + tile * (TILE * BITS // 8))[:, None]
    if BITS == 8:
        code = tl.load(first + tl.arange(0, TILE)[None, :], mask=used[:, None], other=0)
        value = e4m3_decode(code)
    else:
        code = tl.load(first + tl.arange(0, TILE // 2)[None, :], mask=used[:, None], other=0)
        value = e2m1_decode(unpack_pairs(code.to(tl.int32)))
    value = tl.where(used[:, None], value * factor[:, None], 0.0)
    target = rows + (token.to(tl.int64) * width + tile * TILE)[:, None] + tl.arange(0, TILE)[None, :]
    tl.store(target, value.to(rows.dtype.element_ty), mask=tl.broadcast_to(there[:, None], [ROWS * TILES, TILE]))
    if PLAIN > 0:
        token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        there = token < count
        exists, data, _ = place_of(slots, token, there, slot_step, capacity, page, block_step, data_step, scale_step)
        c = tl.arange(0, PLAIN)
        source = (kv_cache + (data + plain_first)[:, None] + 2 * c[None, :]).to(tl.pointer_type(tl.bfloat16))
        kept = tl.load(source, mask=(there & exists)[:, None], other=0.0)
        target = rows + (token.to(tl.int64) * width + coded)[:, None] + c[None, :]
        tl.store(target, kept.to(rows.dtype.element_ty), mask=tl.broadcast_to(there[:, None], [ROWS, PLAIN]))


@triton.jit
def merge_states(
    outs, lses, attn_sink, out, lse, states, lines, tokens, heads, width, out_state, out_lead, out_token, out_head,
    lse_state, lse_lead, lse_token, lse_head, sink_step, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Rows (lead, token, head) of the merged result; an empty state's out is not looked at."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < lines
    head, line = (row % heads).to(tl.int64), row // heads
    token, lead = (line % tokens).to(tl.int64), (line // tokens).to(tl.int64)
    where = lses + lead * lse_lead + token * lse_token + head * lse_head
    column = tl.arange(0, BLOCK)
    inside = column < width
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for i in range(states):
        top = tl.maximum(top, tl.load(where + i.to(tl.int64) * lse_state, mask=there, other=float("-inf")))
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([ROWS], dtype=tl.float32)
    merged = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    source = outs + (lead * out_lead + token * out_token + head * out_head)[:, None] + column[None, :]
    for i in range(states):
        weight = tl.exp(tl.load(where + i.to(tl.int64) * lse_state, mask=there, other=float("-inf")) - base)
        total += weight
        mask = (weight != 0.0)[:, None] & inside[None, :]
        part = tl.load(source + i.to(tl.int64) * out_state, mask=mask, other=0.0).to(tl.float32)
        merged += part * tl.where(weight != 0.0, weight, 0.0)[:, None]
    joined = tl.where(total == 0.0, float("-inf"), base + tl.log(total))
    share = tl.div_rn(1.0, tl.where(total == 0.0, 1.0, total))
    if attn_sink is not None:
        sink = tl.load(attn_sink + head * sink_step, mask=there, other=0.0)
        part = tl.div_rn(1.0, 1.0 + tl.exp(sink - joined))
        share = share * tl.where(joined == float("-inf"), 1.0, part)
    target = out + (row.to(tl.int64) * width)[:, None] + column[None, :]
    tl.store(target, (merged * share[:, None]).to(out.dtype.element_ty), mask=there[:, None] & inside[None, :])
    tl.store(lse + (lead * heads + head) * tokens + token, joined, mask=there)
