"""PTX of choosing the largest of many values with one warp, for inline assembly; text only, made per number of values.

Keys are int32 orders (`device.moe.ordered`), `values` of them in each lane: lane l holds experts l * values and on.
Every lane sorts its own keys once; each round then takes the largest head of all lanes, the lowest lane among equals,
and the winner's list moves up. Equal keys of one lane are told apart by counting, so that ties go to the lower expert.
Instructions per token: 2 per exchange of the sorting network, about 10 per round, 3 per value to find who won.
"""

from __future__ import annotations

from collections.abc import Iterator

LOWEST = "0x80000000"
ALL = "0xffffffff"


def exchanges(count: int) -> Iterator[tuple[int, int]]:
    """(upper, lower) pairs of Batcher's odd-even merge sort of `count` values, a power of two, in order."""
    p = 1
    while p < count:
        k = p
        while k:
            for j in range(k % p, count - k, 2 * k):
                for i in range(min(k, count - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        yield i + j, i + j + k
            k //= 2
        p *= 2


def places(values: int) -> list[int]:
    """Which of a lane's experts each register holds: pieces of four experts are interleaved register by register."""
    pieces = values // 4
    return [4 * (r % pieces) + r // pieces for r in range(values)]


def select(values: int, count: int) -> str:
    """Operands: `values` results, keys, and as many copies of whether the lane takes part. The first result of lane k
    is the expert of rank k, for k < count <= 32; other results are not written."""
    keys = [f"${values + r}" for r in range(values)]
    lines = [f".reg .pred p, q, r; .reg .b32 h<{values}>, best, b, x, own, below, lane, key, who, m, t, u, c;"]
    lines += ["mov.u32 lane, %laneid; mov.u32 below, %lanemask_lt; mov.b32 key, 0; mov.b32 who, 1; mov.b32 m, 0;"]
    lines += [f"mov.b32 h{r}, {key};" for r, key in enumerate(keys)]
    for up, low in exchanges(values):
        lines += [f"max.s32 t, h{up}, h{low}; min.s32 h{low}, h{up}, h{low}; mov.b32 h{up}, t;"]
    lines += [f"setp.eq.s32 p, ${2 * values}, 0; @p mov.b32 h0, {LOWEST};"]
    for k in range(count):
        lines += [
            f"redux.sync.max.s32 best, h0, {ALL}; setp.eq.s32 p, h0, best; vote.sync.ballot.b32 b, p, {ALL};",
            f"setp.eq.s32 r, lane, {k}; @r mov.b32 key, best; @r mov.b32 who, b;",
        ]
        left = min(values, count - k)  # heads that can still win
        if k + 1 < count:
            lines += ["and.b32 x, b, below; setp.eq.and.s32 q, x, 0, p;"]
            lines += [f"@q mov.b32 h{r}, h{r + 1};" for r in range(left - 1)]
            lines += [f"@q mov.b32 h{values - 1}, {LOWEST};"] if left == values else []
    lines += ["neg.s32 x, who; and.b32 who, who, x; bfind.u32 own, who;"]
    for key, place in zip(keys, places(values), strict=True):
        lines += [f"shfl.sync.idx.b32 t, {key}, own, 31, {ALL}; setp.eq.s32 p, t, key; @p or.b32 m, m, {1 << place};"]
    lines += [*_skip_equals(values, count), "neg.s32 t, m; and.b32 t, t, m; bfind.u32 t, t;"]
    lines += [f"mad.lo.s32 $0, own, {values}, t;"]
    return "{ " + "\n".join(lines) + " }"


def _skip_equals(values: int, count: int) -> list[str]:
    """Of the bits in m, clear as many as the lane `own` has won with the same key before; rarely any."""
    lines = [f"shfl.sync.up.b32 t|r, key, 1, 0, {ALL}; shfl.sync.up.b32 u, who, 1, 0, {ALL};"]
    lines += [f"setp.lt.and.s32 r, lane, {count}, r; setp.eq.and.s32 p, t, key, r; setp.eq.and.s32 p, u, who, p;"]
    lines += [f"vote.sync.any.pred q, p, {ALL}; @!q bra.uni DONE; mov.b32 c, 0;"]
    for j in range(1, min(values, count)):
        lines += [f"shfl.sync.up.b32 t|r, key, {j}, 0, {ALL}; shfl.sync.up.b32 u, who, {j}, 0, {ALL};"]
        lines += ["setp.eq.and.s32 p, t, key, r; setp.eq.and.s32 p, u, who, p; @p add.s32 c, c, 1;"]
    for j in range(min(values, count) - 1):
        lines += [f"setp.gt.s32 p, c, {j}; sub.s32 t, m, 1; @p and.b32 m, m, t;"]
    return [*lines, "DONE:"]


def keep(lanes: int, count: int, top2: bool) -> str:
    """Operands: result, and the largest and the second of the lane's float32 values. 1 in the lanes of the `count`
    groups of `lanes` with the largest sum of their two largest (or largest alone), ties to the lower group."""
    shift = lanes.bit_length() - 1
    lines = [".reg .pred p; .reg .f32 a, b, c, d; .reg .b32 o, best, x, t, under;", "mov.f32 a, $1; mov.f32 b, $2;"]
    lines += [f"mov.u32 x, %laneid; and.b32 x, x, {32 - lanes}; mov.b32 t, 1; shl.b32 t, t, x; sub.s32 under, t, 1;"]
    for step in (1 << i for i in range(shift)):
        lines += [f"shfl.sync.bfly.b32 c, a, {step}, 31, {ALL}; shfl.sync.bfly.b32 d, b, {step}, 31, {ALL};"]
        lines += ["max.f32 b, b, d; min.f32 d, a, c; max.f32 a, a, c; max.f32 b, b, d;"]
    lines += ["add.f32 a, a, b;" if top2 else "add.f32 a, a, 0f00000000;", "mov.b32 o, a; shr.s32 t, o, 31;"]
    lines += ["and.b32 t, t, 0x7fffffff; xor.b32 o, o, t; add.s32 o, o, 0x80000;"]
    for _ in range(count):
        lines += [f"redux.sync.max.s32 best, o, {ALL}; setp.eq.s32 p, o, best; vote.sync.ballot.b32 x, p, {ALL};"]
        lines += [f"and.b32 x, x, under; setp.eq.and.s32 p, x, 0, p; @p mov.b32 o, {LOWEST};"]
    lines += [f"setp.eq.s32 p, o, {LOWEST}; selp.b32 $0, 1, 0, p;"]
    return "{ " + "\n".join(lines) + " }"
