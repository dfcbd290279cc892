"""Device code of routing and of the expert activation."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from deepinfer_triton.device.codec import fp8_blocks, quotient, reciprocal
from deepinfer_triton.device.quant import cover, inner, load_tile, locate

LOWEST = tl.constexpr(-(1 << 31))
LARGEST = tl.constexpr(3.4028234663852886e38)
# Orders below that of -inf, which is LOWEST + 0x7FFFFF: ranks already given, what does not exist, what may come last.
FREE = tl.constexpr(LOWEST.value + (1 << 16))
OUTSIDE = tl.constexpr(LOWEST.value + (1 << 17))
EXCLUDED = tl.constexpr(LOWEST.value + (1 << 18))
UNRANKED = tl.constexpr(LOWEST.value + (1 << 19))


@triton.jit
def ordered(value):
    """int32 whose order is that of the float32 values; -0.0 equals 0.0, NaN is below -inf."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return tl.where(value == value, bits ^ ((bits >> 31) & 0x7FFFFFFF), UNRANKED)


@triton.jit
def mark_top(order, name, count, N: tl.constexpr):
    """`order` [T, N] with the `count` largest of each row replaced by LOWEST + rank; ties go to the lower name.

    Maxima of 32-bit orders are one instruction per warp but do not tell ties apart. Those are rare: a round then marks
    more than one, the sum of the marks gives that away, and the rows are ranked again by 64-bit keys with the name.
    """
    marked = order
    for k in range(count):
        best = tl.max(marked, axis=1)
        marked = tl.where(marked == best[:, None], LOWEST + k, marked)
    marks = tl.sum((marked < FREE).to(tl.int32), axis=1)
    if tl.max(marks, axis=0) > count:
        key = (order.to(tl.int64) << 32) + (N - 1 - name)
        marked = order
        for k in range(count):
            here = key == tl.max(key, axis=1)[:, None]
            marked = tl.where(here, LOWEST + k, marked)
            key = tl.where(here, -(1 << 63), key)
    return marked


@triton.jit
def exact_quotient(a, b):
    """a / b for b between 1 and 2^60, rounded correctly but where the result or b's mantissa is at its end."""
    near = reciprocal(b)
    first = a * near
    return tl.fma(tl.fma(-first, b, a), near, first)


@triton.jit
def scores(logit, inside, SCORING: tl.constexpr):
    """Scores of logits [T, N]; 0 outside."""
    # exp of minus the magnitude: neither side overflows, and tiny scores keep their order
    if SCORING == "softmax":
        top = tl.max(tl.where(inside, logit, float("-inf")), axis=1)
        power = tl.where(inside, tl.exp(logit - top[:, None]), 0.0)
        made = exact_quotient(power, tl.broadcast_to(tl.sum(power, axis=1)[:, None], logit.shape))
    elif SCORING == "sigmoid":
        small = tl.exp(-tl.abs(logit))
        made = exact_quotient(tl.where(logit >= 0, 1.0, small), 1.0 + small)
    else:
        made = tl.sqrt_rn(tl.where(logit > 0, logit, 0.0) + libdevice.log1p(tl.exp(-tl.abs(logit))))
    return tl.where(inside, made, 0.0)


@triton.jit
def _two_larger(a, b, c, d):
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def keep_groups(rank, inside, groups, size, topk_group, T: tl.constexpr, GP: tl.constexpr, SP: tl.constexpr,
                TOP2: tl.constexpr):
    """bool [T, GP]: the topk_group groups with the highest score, ties to the lower number."""
    clean = tl.reshape(tl.where(inside & (rank == rank), rank, float("-inf")), [T, GP, SP])
    if TOP2:
        best, second = tl.reduce((clean, tl.full([T, GP, SP], float("-inf"), tl.float32)), 2, _two_larger)
        best = tl.where(size > 1, best + second, best)
    else:
        best = tl.max(clean, axis=2)
    group = tl.broadcast_to(tl.arange(0, GP)[None, :], [T, GP])
    order = tl.where(group < groups, ordered(best), OUTSIDE)
    return mark_top(order, group, topk_group, GP) < FREE


@triton.jit
def route(
    logits, bias, weights, ids, tokens, step, expert_step, bias_step, groups, size, topk_group, top_k, scale, eps,
    T: tl.constexpr, GP: tl.constexpr, SP: tl.constexpr, SCORING: tl.constexpr, TOP2: tl.constexpr,
    RENORMALIZE: tl.constexpr, LIMITED: tl.constexpr,
):
    """T tokens per program, the experts of each as GP padded groups of SP."""
    token = tl.program_id(0) * T + tl.arange(0, T)
    lane = tl.arange(0, GP * SP)
    group, member = lane // SP, lane % SP
    expert = group * size + member
    there = (group < groups) & (member < size)
    inside = (token < tokens)[:, None] & there[None, :]
    place = logits + (token.to(tl.int64) * step)[:, None] + (expert.to(tl.int64) * expert_step)[None, :]
    logit = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    score = scores(logit, inside, SCORING)
    rank = score
    if bias is not None:
        extra = tl.load(bias + expert.to(tl.int64) * bias_step, mask=there, other=0.0).to(tl.float32)
        rank = score + extra[None, :]
    order = ordered(rank)
    if LIMITED:
        kept = keep_groups(rank, inside, groups, size, topk_group, T, GP, SP, TOP2)
        kept = tl.reshape(tl.broadcast_to(kept[:, :, None], [T, GP, SP]), [T, GP * SP])
        order = tl.where(kept, order, EXCLUDED)
    order = tl.where(inside, order, OUTSIDE)
    name = tl.broadcast_to(expert[None, :], [T, GP * SP])
    marked = mark_top(order, name, top_k, GP * SP)
    chosen = inside & (marked < FREE)
    if RENORMALIZE:
        total = tl.sum(tl.where(chosen, score, 0.0), axis=1) + eps
        score = quotient(score, tl.where(total == float("inf"), LARGEST, total), False)
    target = (token.to(tl.int64) * top_k)[:, None] + (marked - LOWEST)
    tl.store(weights + target, score * scale, mask=chosen)
    tl.store(ids + target, name, mask=chosen)


@triton.jit
def logistic(x):
    """1 / (1 + exp(-x)) by the hardware's power and reciprocal, within 2 units in the last place; 0 below 2^-126."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 power; ex2.approx.ftz.f32 power, $1; add.f32 power, power, 0f3F800000; "
        "rcp.approx.ftz.f32 $0, power; }", "=f,f", [x * -1.4426950408889634], tl.float32, True, 1
    )


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
    gate = load_tile(gate_up, matrix, row, column, i, j, mask, sb, sr, sc, br, bc).to(tl.float32)
    second = gate_up + tl.cast(sc, tl.int64) * cols
    up = load_tile(second, matrix, row, column, i, j, mask, sb, sr, sc, br, bc).to(tl.float32)
    if LIMITED:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    made = gate * logistic(gate) * up
    if route_weights is not None:
        factor = tl.load(route_weights + row.to(tl.int64) * weight_step, mask=inside, other=0.0)
        made = made * factor[:, None]
    if FORM == "":
        tl.store(data + place, made.to(data.dtype.element_ty), mask=mask)
    else:
        made = tl.where(mask, made, 0.0)
        code, stored = fp8_blocks(made, floor, FORM == "ue8m0", True)
        tl.store(data + place, code.to(tl.float8e4nv, bitcast=True), mask=mask)
        tl.store(scale + index, stored.to(scale.dtype.element_ty), mask=inside)
