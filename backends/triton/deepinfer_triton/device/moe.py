"""Device code of routing and of the expert activation."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from deepinfer_triton.device.codec import fp8_blocks
from deepinfer_triton.device.quant import cover, inner, load_tile, locate

LOWEST = tl.constexpr(-(1 << 31))
# Orders below that of -inf: ranks already given, what does not exist, what may come last, NaN.
FREE = tl.constexpr(LOWEST.value + (1 << 16))
OUTSIDE = tl.constexpr(LOWEST.value + (1 << 17))
EXCLUDED = tl.constexpr(LOWEST.value + (1 << 18))
SHIFT = tl.constexpr(1 << 19)


@triton.jit
def ordered(value):
    """int32 whose order is that of float32 sums other than -0.0; NaN is below -inf.

    A sum that is NaN has the bits 0x7FFFFFFF on these devices: the shift wraps it around, above EXCLUDED.
    """
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) + SHIFT


@triton.jit
def mark_top(order, name, COUNT: tl.constexpr, N: tl.constexpr):
    """`order` [T, N] with the COUNT largest of each row replaced by LOWEST + rank; ties go to the lower name.

    Maxima of 32-bit orders are one instruction per warp but do not tell ties apart. Those are rare: a round then marks
    more than one, the sum of the marks gives that away, and the rows are ranked again by 64-bit keys with the name.
    """
    marked = order
    for k in tl.range(COUNT, loop_unroll_factor=min(COUNT, 8)):
        best = tl.max(marked, axis=1)
        marked = tl.where(marked == best[:, None], LOWEST + k, marked)
    marks = tl.sum((marked < FREE).to(tl.int32), axis=1)
    if tl.max(marks, axis=0) > COUNT:
        key = (order.to(tl.int64) << 32) + (N - 1 - name)
        marked = order
        for k in range(COUNT):
            here = key == tl.max(key, axis=1)[:, None]
            marked = tl.where(here, LOWEST + k, marked)
            key = tl.where(here, -(1 << 63), key)
    return marked


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) within half a unit in the last place and a little; tiny ones keep their order.

    exp of minus the magnitude: neither side overflows. A Newton step makes the reciprocal of the hardware's own. In
    PTX, because signs and magnitudes of operands cost nothing there, and a factor of 1 is no multiplication.
    """
    return tl.inline_asm_elementwise(
        """{ .reg .f32 power, base, near, rest; .reg .pred below;
        abs.f32 power, $1; mul.f32 power, power, 0fBFB8AA3B; ex2.approx.f32 power, power;
        add.f32 base, power, 0f3F800000; rcp.approx.ftz.f32 near, base; neg.f32 base, base;
        fma.rn.f32 rest, base, near, 0f3F800000; fma.rn.f32 near, near, rest, near;
        setp.lt.f32 below, $1, 0f00000000; @below mul.f32 near, near, power; mov.f32 $0, near; }""",
        "=f,f", [x], tl.float32, True, 1,
    )


@triton.jit
def score_of(logit, top, total, SCORING: tl.constexpr):
    """Scores of logits; `top` and `total` (the sum of powers over it) shape a softmax and must broadcast."""
    if SCORING == "softmax":
        made = tl.div_rn(tl.exp(logit - top), tl.broadcast_to(total, logit.shape))
    elif SCORING == "sigmoid":
        made = sigmoid(logit)
    else:
        made = tl.sqrt_rn(tl.where(logit > 0, logit, 0.0) + libdevice.log1p(tl.exp(-tl.abs(logit))))
    return made


@triton.jit
def scores(logit, inside, SCORING: tl.constexpr):
    """Scores of logits [T, N]; anything outside."""
    top, total = 0.0, 1.0
    if SCORING == "softmax":
        top = tl.max(tl.where(inside, logit, float("-inf")), axis=1)[:, None]
        total = tl.sum(tl.where(inside, tl.exp(logit - top), 0.0), axis=1)[:, None]
    return score_of(logit, top, total, SCORING)


@triton.jit
def _two_larger(a, b, c, d):
    return tl.maximum(a, c), tl.maximum(tl.minimum(a, c), tl.maximum(b, d))


@triton.jit
def keep_groups(rank, groups, size, T: tl.constexpr, GP: tl.constexpr, SP: tl.constexpr, TOP2: tl.constexpr,
                COUNT: tl.constexpr):
    """bool [T, GP]: the COUNT groups with the highest score, ties to the lower number; ranks outside are -inf."""
    clean = tl.reshape(tl.maximum(rank, float("-inf")), [T, GP, SP])  # the larger of NaN and a number is the number
    if TOP2:
        best, second = tl.reduce((clean, tl.full([T, GP, SP], float("-inf"), tl.float32)), 2, _two_larger)
        best = tl.where(size > 1, best + second, best)
    else:
        best = tl.max(clean, axis=2)
    group = tl.broadcast_to(tl.arange(0, GP)[None, :], [T, GP])
    order = tl.where(group < groups, ordered(best + 0.0), OUTSIDE)
    return mark_top(order, group, COUNT, GP) < FREE


@triton.jit
def route(
    logits, bias, weights, ids, tokens, step, expert_step, bias_step, groups, size, scale, eps, T: tl.constexpr,
    GP: tl.constexpr, SP: tl.constexpr, SCORING: tl.constexpr, TOP2: tl.constexpr, RENORMALIZE: tl.constexpr,
    TOP_K: tl.constexpr, KEPT: tl.constexpr, WHOLE: tl.constexpr,
):
    """T tokens per program, the experts of each as GP padded groups of SP; KEPT groups stay (0: there are none).

    WHOLE promises that nothing is padded.
    """
    token = tl.program_id(0) * T + tl.arange(0, T)
    lane = tl.arange(0, GP * SP)
    group, member = lane // SP, lane % SP
    expert = group * size + member
    there = (group < groups) & (member < size)
    inside = (token < tokens)[:, None] & there[None, :]
    place = logits + (token.to(tl.int64) * step)[:, None] + (expert.to(tl.int64) * expert_step)[None, :]
    logit = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    score = scores(logit, inside, SCORING)
    extra = tl.zeros([GP * SP], dtype=tl.float32)
    if bias is not None:
        extra = tl.load(bias + expert.to(tl.int64) * bias_step, mask=there, other=0.0).to(tl.float32)
    rank = score + extra[None, :]  # scores are no -0.0, so sums are none
    if not WHOLE:
        rank = tl.where(inside, rank, float("-inf"))
    order = ordered(rank)
    if KEPT > 0:
        kept = keep_groups(rank, groups, size, T, GP, SP, TOP2, KEPT)
        kept = tl.reshape(tl.broadcast_to(kept[:, :, None], [T, GP, SP]), [T, GP * SP])
        order = tl.where(kept, order, EXCLUDED)
    if not WHOLE:
        order = tl.where(inside, order, OUTSIDE)
    name = tl.broadcast_to(expert[None, :], [T, GP * SP])
    marked = mark_top(order, name, TOP_K, GP * SP)
    chosen = marked < FREE
    if not WHOLE:
        chosen = chosen & inside
    if RENORMALIZE:
        total = tl.sum(tl.where(chosen, score, 0.0), axis=1) + eps
        # what is tiny is first made larger, so that the reciprocal does not overflow
        lift = tl.where(total < 2.0**-60, 2.0**80, 1.0)
        score = (score * lift[:, None]) * tl.div_rn(tl.full([T], 1.0, tl.float32), total * lift)[:, None]
    target = (token.to(tl.int64) * TOP_K)[:, None] + (marked - LOWEST)
    tl.store(weights + target, score * scale, mask=chosen)
    tl.store(ids + target, name, mask=chosen)


@triton.jit
def _of_lanes(base, lane, step, there, V: tl.constexpr):
    """float32 of V neighbours per lane from `base` on, [L, 4] or [L, 4, 2] of two vectors: each a lane's 16 bytes."""
    place = base[:, None] + (lane[:, None] * V + tl.arange(0, 4)[None, :]) * step
    value = tl.load(place, mask=there[:, None], other=0.0)
    if V == 8:
        value = tl.join(value, tl.load(place + 4 * step, mask=there[:, None], other=0.0))
    return value.to(tl.float32)


@triton.jit
def _to_lanes(value, V: tl.constexpr):
    """Values of tokens [W] for their lanes, [32 W, 1] or [32 W, 1, 1]."""
    count: tl.constexpr = value.shape[0]
    lanes = tl.reshape(tl.broadcast_to(value[:, None], [count, 32]), [32 * count])[:, None]
    if V == 8:
        lanes = lanes[:, :, None]
    return lanes


@triton.jit
def _two_of_lanes(value, V: tl.constexpr):
    """The largest and the second of each lane's values; what is NaN counts as -inf."""
    clean = tl.maximum(value, float("-inf"))  # the larger of NaN and a number is the number
    if V == 8:
        a, b = tl.split(clean)
        high, low = tl.maximum(a, b), tl.minimum(a, b)
    else:
        high, low = clean, tl.full(clean.shape, float("-inf"), tl.float32)
    return tl.reduce((high, low), 1, _two_larger)


@triton.jit
def _first_of_lanes(value, V: tl.constexpr):
    """The first value of each lane."""
    if V == 8:
        value, _ = tl.split(value)
    value, _ = tl.split(tl.reshape(value, [value.shape[0], 2, 2]))
    value, _ = tl.split(value)
    return value


@triton.jit
def route_warp(
    logits, bias, weights, ids, tokens, step, expert_step, bias_step, scale, eps, W: tl.constexpr, V: tl.constexpr,
    SCORING: tl.constexpr, KEEP: tl.constexpr, SELECT: tl.constexpr, OPERANDS: tl.constexpr,
    RENORMALIZE: tl.constexpr, TOP_K: tl.constexpr,
):
    """One token per warp, W of them; V experts per lane. KEEP ("": no groups) and SELECT are PTX of `warp_top`."""
    line = tl.arange(0, 32 * W)
    lane, token = line % 32, (tl.program_id(0) * W + line // 32).to(tl.int64)
    there = token < tokens
    row = logits + token * step
    logit = _of_lanes(row, lane, expert_step, there, V)
    top, total = tl.zeros([W], tl.float32), tl.zeros([W], tl.float32)
    if SCORING == "softmax":
        top = tl.max(tl.reshape(logit, [W, 32 * V]), axis=1)
        total = tl.sum(tl.reshape(tl.exp(logit - _to_lanes(top, V)), [W, 32 * V]), axis=1)
    rank = score_of(logit, _to_lanes(top, V), _to_lanes(total, V), SCORING)
    if bias is not None:
        rank += _of_lanes(bias + lane * 0, lane, bias_step, lane >= 0, V)
    else:
        rank += 0.0  # scores are no -0.0, so sums are none
    kept = tl.full([32 * W], 1, tl.int32)
    if KEEP != "":
        best, second = _two_of_lanes(rank, V)
        kept = tl.inline_asm_elementwise(KEEP, "=&r,f,f", [best, second], tl.int32, False, 1)
    if V == 8:
        joins = tl.broadcast_to(kept[:, None, None], logit.shape)
    else:
        joins = tl.broadcast_to(kept[:, None], logit.shape)
    found = tl.inline_asm_elementwise(SELECT, OPERANDS, [ordered(rank), joins], tl.int32, False, V)
    expert = _first_of_lanes(found, V)
    mask = there & (lane < TOP_K)
    chosen = tl.load(row + expert * expert_step, mask=mask, other=0.0).to(tl.float32)[:, None]
    score = tl.reshape(score_of(chosen, _to_lanes(top, 1), _to_lanes(total, 1), SCORING), [32 * W])
    if RENORMALIZE:
        total = tl.sum(tl.reshape(tl.where(mask, score, 0.0), [W, 32]), axis=1) + eps
        # what is tiny is first made larger, so that the reciprocal does not overflow
        lift = tl.where(total < 2.0**-60, 2.0**80, 1.0)
        share = tl.div_rn(tl.full([W], 1.0, tl.float32), total * lift)
        score = tl.reshape((tl.reshape(score, [W, 32]) * lift[:, None]) * share[:, None], [32 * W])
    target = token * TOP_K + lane
    tl.store(weights + target, score * scale, mask=mask)
    tl.store(ids + target, expert, mask=mask)


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
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.minimum(up, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.maximum(up, -limit, propagate_nan=tl.PropagateNan.ALL)
    made = gate * logistic(gate) * up
    if route_weights is not None:
        factor = tl.load(route_weights + row.to(tl.int64) * weight_step, mask=inside, other=0.0)
        made = made * factor[:, None]
    if FORM == "":
        tl.store(data + place, made.to(data.dtype.element_ty), mask=mask)
    else:
        if not WHOLE:
            made = tl.where(mask, made, 0.0)  # a factor may be infinite
        code, stored = fp8_blocks(made, floor, FORM == "ue8m0", True)
        tl.store(data + place, code.to(tl.float8e4nv, bitcast=True), mask=mask)
        tl.store(scale + index, stored.to(scale.dtype.element_ty), mask=inside)
