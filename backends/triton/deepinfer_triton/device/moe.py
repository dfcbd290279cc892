"""Device code of routing and of the expert activation."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from deepinfer_triton.device.codec import fp8_blocks
from deepinfer_triton.device.quant import cover, inner, load_tile, locate

LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def ordered(value):
    """int32 whose order is that of the float32 values; -0.0 equals 0.0, NaN is next to the lowest."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(value == value, order, LOWEST + 1)


@triton.jit
def spread(logit, inside, SCORING: tl.constexpr):
    """(largest logit, sum of powers above it) of a row's logits [G, S], which softmax needs."""
    top = tl.max(tl.max(tl.where(inside, logit, float("-inf")), axis=1), axis=0)
    total = top
    if SCORING == "softmax":
        power = tl.where(inside, tl.exp(logit - top), 0.0)
        total = tl.sum(tl.sum(power, axis=1), axis=0)
    return top, total


@triton.jit
def value_of(logit, top, total, SCORING: tl.constexpr):
    """Scores of logits of any shape."""
    # exp of minus the magnitude: neither side overflows, and tiny scores keep their order
    small = tl.exp(-tl.abs(logit))
    if SCORING == "softmax":
        made = tl.div_rn(tl.exp(logit - top), tl.broadcast_to(total, logit.shape))
    elif SCORING == "sigmoid":
        made = tl.div_rn(tl.where(logit >= 0, 1.0, small), 1.0 + small)
        made = tl.where(logit == logit, made, logit)
    else:
        made = tl.sqrt_rn(tl.where(logit > 0, logit, 0.0) + libdevice.log1p(small))
    return made


@triton.jit
def keep_groups(rank, inside, groups, size, topk_group, GP: tl.constexpr, SP: tl.constexpr, TOP2: tl.constexpr):
    """bool [GP]: the topk_group groups with the highest score, ties to the lower number."""
    clean = tl.where(inside & (rank == rank), rank, float("-inf"))
    best = tl.max(clean, axis=1)
    if TOP2:
        lane = tl.broadcast_to(tl.arange(0, SP)[None, :], [GP, SP])
        first = tl.min(tl.where(clean == best[:, None], lane, SP), axis=1)
        second = tl.max(tl.where(lane == first[:, None], float("-inf"), clean), axis=1)
        best = tl.where(size > 1, best + second, best)
    group = tl.arange(0, GP)
    # the group's number in the low bits decides ties
    key = (ordered(best).to(tl.int64) << 32) + (GP - 1 - group)
    key = tl.where(group < groups, key, -(1 << 63))
    kept = group < 0
    for _ in range(topk_group):
        here = key == tl.max(key, axis=0)
        kept = kept | here
        key = tl.where(here, -(1 << 63), key)
    return kept


@triton.jit
def route(
    logits, bias, weights, ids, step, expert_step, bias_step, groups, size, topk_group, top_k, scale, eps,
    GP: tl.constexpr, SP: tl.constexpr, KP: tl.constexpr, SCORING: tl.constexpr, TOP2: tl.constexpr,
    RENORMALIZE: tl.constexpr, LIMITED: tl.constexpr,
):
    """One token per program, its experts as a [GP, SP] tile of groups."""
    token = tl.program_id(0).to(tl.int64)
    g, s = tl.arange(0, GP), tl.arange(0, SP)
    inside = (g < groups)[:, None] & (s < size)[None, :]
    expert = g[:, None] * size + s[None, :]
    place = token * step + expert.to(tl.int64) * expert_step
    logit = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    top, total = spread(logit, inside, SCORING)
    score = tl.where(inside, value_of(logit, top, total, SCORING), 0.0)
    rank = score
    if bias is not None:
        rank = score + tl.load(bias + expert.to(tl.int64) * bias_step, mask=inside, other=0.0).to(tl.float32)
    order = ordered(rank)
    if LIMITED:
        kept = keep_groups(rank, inside, groups, size, topk_group, GP, SP, TOP2)
        order = tl.where(kept[:, None], order, LOWEST)
    key = (order.to(tl.int64) << 32) + (GP * SP - 1 - expert)
    key = tl.where(inside, key, -(1 << 63))
    slot = tl.arange(0, KP)
    names = tl.zeros([KP], dtype=tl.int32)
    for k in range(top_k):
        best = tl.max(tl.max(key, axis=1), axis=0)
        names = tl.where(slot == k, GP * SP - 1 - (best & 0xFFFFFFFF).to(tl.int32), names)
        key = tl.where(key == best, -(1 << 63), key)
    # the winners' scores once more: cheaper than carrying them through every maximum
    picked = tl.load(logits + token * step + names.to(tl.int64) * expert_step, mask=slot < top_k, other=0.0)
    chosen = tl.where(slot < top_k, value_of(picked.to(tl.float32), top, total, SCORING), 0.0)
    if RENORMALIZE:
        chosen = tl.div_rn(chosen, tl.broadcast_to(tl.sum(chosen, axis=0) + eps, chosen.shape))
    target = token * top_k + slot
    tl.store(weights + target, chosen * scale, mask=slot < top_k)
    tl.store(ids + target, names, mask=slot < top_k)


@triton.jit
def swiglu_quantize(
    gate_up, route_weights, data, scale, sb, sr, sc, weight_step, limit, floor, rows, cols, br, bc, grid_rows,
    grid_cols, lines, tiles, ROWS: tl.constexpr, CBS: tl.constexpr, BRP: tl.constexpr, BCP: tl.constexpr,
    BATCHED: tl.constexpr, WHOLE: tl.constexpr, LIMITED: tl.constexpr, FORM: tl.constexpr,
):
    """Blocks of one row; FORM is "" (not quantised), "f32" or "ue8m0" (the scale type)."""
    matrix, row, column, inside, index = locate(grid_rows, grid_cols, lines, tiles, ROWS, CBS, BATCHED)
    i, j = inner(BRP, BCP)
    place, mask = cover(matrix, row, column, i, j, inside, rows, cols, br, bc, WHOLE)
    gate = load_tile(gate_up, matrix, row, column, i, j, mask, sb, sr, sc, br, bc)
    up = load_tile(gate_up + tl.cast(sc, tl.int64) * cols, matrix, row, column, i, j, mask, sb, sr, sc, br, bc)
    if LIMITED:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    made = gate / (1.0 + tl.exp(-gate)) * up
    if route_weights is not None:
        factor = tl.load(route_weights + row.to(tl.int64) * weight_step, mask=inside, other=0.0)
        made = made * factor[:, None]
    if FORM == "":
        tl.store(data + place, made.to(data.dtype.element_ty), mask=mask)
    else:
        made = tl.where(mask, made, 0.0)
        code, stored = fp8_blocks(made, floor, FORM == "ue8m0")
        tl.store(data + place, code.to(tl.float8e4nv, bitcast=True), mask=mask)
        tl.store(scale + index, stored.to(scale.dtype.element_ty), mask=inside)
