"""Device code that sorts rows by group, and the ordered sum of the rows of a token.

Sorting takes two launches: every group counts its members, then every group walks the list again and places them, so
the order is stable and no atomic decides anything. The program after the last group writes what belongs to none.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count(ids, counts, total, lanes, row_step, lane_step, BLOCK: tl.constexpr):
    """counts[g] = members of group g."""
    group = tl.program_id(0)
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(0, total, BLOCK):
        item = first + tl.arange(0, BLOCK)
        place = (item // lanes).to(tl.int64) * row_step + (item % lanes).to(tl.int64) * lane_step
        found += (tl.load(ids + place, mask=item < total, other=-1) == group).to(tl.int32)
    tl.store(counts + group, tl.sum(found, axis=0))


@triton.jit
def place(
    ids, counts, starts, total_rows, rank, order, total, lanes, row_step, lane_step, groups, alignment, capacity,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):
    """starts, the item at each position (`order`, -1 in gaps) and, where wanted, the position of each item (`rank`)."""
    group = tl.program_id(0)
    every = tl.arange(0, GROUPS)
    size = tl.load(counts + every, mask=every < groups, other=0)
    room = (size + alignment - 1) // alignment * alignment
    start = tl.sum(tl.where(every < group, room, 0), axis=0)
    own = tl.sum(tl.where(every == group, size, 0), axis=0)
    limit = start + tl.sum(tl.where(every == group, room, 0), axis=0)
    last = group == groups
    if last:
        limit = capacity
        if total_rows is not None:
            tl.store(total_rows, start)
    else:
        tl.store(starts + group, start)
    for first in range(start + own, limit, BLOCK):
        gap = first + tl.arange(0, BLOCK)
        tl.store(order + gap, tl.full([BLOCK], -1, order.dtype.element_ty), mask=gap < limit)
    position = start
    for first in range(0, total, BLOCK):
        item = first + tl.arange(0, BLOCK)
        there = item < total
        source = (item // lanes).to(tl.int64) * row_step + (item % lanes).to(tl.int64) * lane_step
        name = tl.load(ids + source, mask=there, other=-1)
        mine = there & (name == group)
        chosen = mine.to(tl.int32)
        target = position + tl.cumsum(chosen, axis=0) - chosen
        mine = mine & (not last)
        tl.store(order + target, item.to(order.dtype.element_ty), mask=mine)
        if rank is not None:
            tl.store(rank + item, target, mask=mine)
            nowhere = there & last & ((name < 0) | (name >= groups))
            tl.store(rank + item, tl.full([BLOCK], -1, tl.int32), mask=nowhere)
        position += tl.sum(chosen, axis=0)


@triton.jit
def group_rows(
    ids, permutation, starts, counts, total, lanes, row_step, lane_step, groups, alignment, capacity,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):
    place(ids, counts, starts, None, None, permutation, total, lanes, row_step, lane_step, groups, alignment, capacity,
          BLOCK, GROUPS)


@triton.jit
def expert_layout(
    ids, starts, counts, total, row_of, source, items, lanes, row_step, lane_step, groups, alignment, capacity,
    BLOCK: tl.constexpr, GROUPS: tl.constexpr,
):
    place(ids, counts, starts, total, row_of, source, items, lanes, row_step, lane_step, groups, alignment, capacity,
          BLOCK, GROUPS)


@triton.jit
def homes(slots, token, lane, there, row_step, lane_step, ranks, per):
    """Rank of each slot, `ranks` where unused."""
    where = token.to(tl.int64)[:, None] * row_step + lane.to(tl.int64)[None, :] * lane_step
    slot = tl.load(slots + where, mask=there, other=-1).to(tl.int64)
    used = there & (slot >= 0) & (slot < per.to(tl.int64) * ranks)
    return tl.where(used, slot // tl.maximum(per, 1), ranks).to(tl.int32)


@triton.jit
def send_counts(
    slots, counts, slot_counts, tokens_total, lanes, row_step, lane_step, ranks, per, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Tokens and slots of each rank."""
    rank = tl.program_id(0)
    lane = tl.arange(0, LANES)
    sent = 0
    used = 0
    for first in range(0, tokens_total, BLOCK):
        token = first + tl.arange(0, BLOCK)
        there = (token < tokens_total)[:, None] & (lane < lanes)[None, :]
        mine = (homes(slots, token, lane, there, row_step, lane_step, ranks, per) == rank) & there
        here = tl.sum(mine.to(tl.int32), axis=1)
        sent += tl.sum((here > 0).to(tl.int32), axis=0)
        used += tl.sum(here, axis=0)
    tl.store(counts + rank, sent)
    tl.store(slot_counts + rank, used)


@triton.jit
def send_plan(
    slots, counts, tokens, rank_row, slot_counts, slot_row, tokens_total, lanes, row_step, lane_step, ranks, per, room,
    BLOCK: tl.constexpr, LANES: tl.constexpr, RANKS: tl.constexpr,
):
    """Program `ranks` writes -1 where a slot is unused and after the last row sent."""
    rank = tl.program_id(0)
    every = tl.arange(0, RANKS)
    before = every < tl.minimum(rank, ranks)
    row = tl.sum(tl.where(before, tl.load(counts + every, mask=every < ranks, other=0), 0), axis=0)
    number = tl.sum(tl.where(before, tl.load(slot_counts + every, mask=every < ranks, other=0), 0), axis=0)
    lane = tl.arange(0, LANES)
    if rank == ranks:
        for first in range(row, room, BLOCK):
            gap = first + tl.arange(0, BLOCK)
            tl.store(tokens + gap, tl.full([BLOCK], -1, tl.int32), mask=gap < room)
    for first in range(0, tokens_total, BLOCK):
        token = first + tl.arange(0, BLOCK)
        there = (token < tokens_total)[:, None] & (lane < lanes)[None, :]
        mine = (homes(slots, token, lane, there, row_step, lane_step, ranks, per) == rank) & there
        one = mine.to(tl.int32)
        here = tl.sum(one, axis=1)
        sent = (here > 0).to(tl.int32)
        at = row + tl.cumsum(sent, axis=0) - sent
        final = tl.max(tl.where(mine, tl.broadcast_to(lane[None, :], mine.shape), -1), axis=1)
        slot_at = number + (tl.cumsum(here, axis=0) - here)[:, None] + tl.cumsum(one, axis=1) - one
        target = token[:, None] * lanes + lane[None, :]
        marked = tl.where((lane[None, :] == final[:, None]) & (rank < ranks), at[:, None], -1)
        tl.store(tokens + at, token, mask=(sent > 0) & (rank < ranks))
        tl.store(rank_row + target, marked, mask=mine)
        tl.store(slot_row + target, tl.where(rank < ranks, slot_at, -1), mask=mine)
        row += tl.sum(sent, axis=0)
        number += tl.sum(here, axis=0)


@triton.jit
def reduce(
    rows, index, weights, bias, y, count, lanes, width, tiles, row_step, index_step, index_lane, weight_step, bias_step,
    BLOCK: tl.constexpr,
):
    """A tile of one token: products are rounded, then added in slot order (compiled without fused products)."""
    token = (tl.program_id(0) // tiles).to(tl.int64)
    column = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    if bias is not None:
        total = tl.load(bias + token * bias_step + column, mask=inside, other=0.0).to(tl.float32)
    for k in range(lanes):
        source = tl.load(index + token * index_step + k.to(tl.int64) * index_lane).to(tl.int64)
        if (source >= 0) & (source < count):
            term = tl.load(rows + source * row_step + column, mask=inside, other=0.0).to(tl.float32)
            if weights is not None:
                term = term * tl.load(weights + source * weight_step)
            total = total + term
    tl.store(y + token * width + column, total.to(y.dtype.element_ty), mask=inside)
