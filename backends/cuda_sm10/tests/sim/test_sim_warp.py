# ruff: noqa: E501, E741
"""Warp collectives, divergence, CTA barriers with reductions, atomics."""

from __future__ import annotations

import numpy as np
import pytest
import simlib
from lanes import HEAD, execute

LANES = np.arange(32, dtype=np.uint32)


@pytest.mark.parametrize(
    ("mode", "fn"),
    [
        ("up", lambda l, b: l - b if l - b >= 0 else l),
        ("down", lambda l, b: l + b if l + b < 32 else l),
        ("bfly", lambda l, b: l ^ b),
        ("idx", lambda l, b: b),
    ],
)
def test_shfl(mode: str, fn: object) -> None:
    a = LANES * 10 + 7
    for b in (0, 1, 5, 16, 31):
        c = 0 if mode == "up" else 31
        got = execute(
            f"shfl.sync.{mode}.b32 %d|%p, %a, {b}, {c}, 0xffffffff;\nselp.b32 %e, 1, 0, %p;",
            {"a": a},
            {"d": np.uint32, "e": np.uint32},
        )
        assert got["d"].tolist() == [int(a[fn(l, b)]) for l in range(32)]  # type: ignore[operator]
        if mode == "up":
            assert got["e"].tolist() == [int(l >= b) for l in range(32)]


def test_shfl_segments() -> None:
    got = execute("shfl.sync.down.b32 %d, %a, 3, 0x1807, 0xffffffff;", {"a": LANES}, {"d": np.uint32})[
        "d"
    ]  # segments of 8
    assert got.tolist() == [l + 3 if l % 8 + 3 < 8 else l for l in range(32)]


def test_vote_match_redux_elect() -> None:
    a = np.array([i // 4 for i in range(32)], np.uint32)
    got = execute(
        "setp.gt.u32 %p, %a, 3;\nvote.sync.ballot.b32 %b, %p, 0xffffffff;\nvote.sync.any.pred %q, %p, 0xffffffff;\nselp.b32 %y, 1, 0, %q;\n"
        "match.any.sync.b32 %m, %a, 0xffffffff;\nredux.sync.add.s32 %s, %a, 0xffffffff;\nredux.sync.max.u32 %x, %a, 0xffffffff;\n"
        "elect.sync %e|%p, 0xffffffff;\nselp.b32 %f, 1, 0, %p;\nactivemask.b32 %v;",
        {"a": a},
        dict.fromkeys(("b", "y", "m", "s", "x", "e", "f", "v"), np.uint32),
    )
    assert set(got["b"].tolist()) == {0xFFFF0000}
    assert set(got["y"].tolist()) == {1}
    assert got["m"].tolist() == [0xF << 4 * (i // 4) for i in range(32)]
    assert set(got["s"].tolist()) == {int(a.sum())}
    assert set(got["x"].tolist()) == {7}
    assert set(got["e"].tolist()) == {0}
    assert got["f"].tolist() == [1] + [0] * 31
    assert set(got["v"].tolist()) == {0xFFFFFFFF}


def test_elect_is_random_but_consistent_under_stress() -> None:
    leaders = set()
    for seed in range(12):
        simlib.configure(seed=seed, spurious_waits="on")
        got = execute(
            "elect.sync %e|%p, 0xffffffff;\nselp.b32 %f, 1, 0, %p;", {"a": LANES}, {"e": np.uint32, "f": np.uint32}
        )
        assert len(set(got["e"].tolist())) == 1
        assert int(got["f"].sum()) == 1
        assert int(got["f"][got["e"][0]]) == 1
        leaders.add(int(got["e"][0]))
    assert len(leaders) > 3


def test_divergent_loops_meet_again() -> None:
    body = (
        "mov.u32 %i, 0;\nLOOP:\nadd.u32 %i, %i, 1;\nsetp.lt.u32 %p, %i, %a;\n@%p bra LOOP;\nshfl.sync.bfly.b32 %d, %i, 1, 31, 0xffffffff;\n"
        "and.b32 %t, %a, 1;\nsetp.eq.u32 %q, %t, 0;\n@%q bra EVEN;\nadd.u32 %d, %d, 1000;\nbra JOIN;\nEVEN:\nadd.u32 %d, %d, 2000;\nJOIN:\nbar.warp.sync 0xffffffff;"
    )
    a = LANES + 1
    for schedule in ("eager", "random", "lazy"):
        simlib.configure(schedule=schedule, seed=3)
        got = execute(body, {"a": a}, {"d": np.uint32}, regs=".reg .b32 %i, %t;")["d"]
        assert got.tolist() == [int(a[l ^ 1]) + (2000 if a[l] % 2 == 0 else 1000) for l in range(32)]


def test_lanes_that_wait_for_each_other_make_progress() -> None:
    """Lane 0 spins until lane 31 of its own warp has stored: independent thread scheduling."""
    body = (
        "mov.u32 %s, flag;\nsetp.eq.u32 %p, %thread, 0;\n@!%p bra OTHER;\nSPIN:\nld.volatile.shared.u32 %d, [%s];\nsetp.eq.u32 %q, %d, 0;\n@%q bra SPIN;\nbra DONE;\n"
        "OTHER:\nmov.u32 %d, 5;\nsetp.eq.u32 %q, %thread, 31;\n@%q st.volatile.shared.u32 [%s], 9;\nDONE:\n"
    )
    init = "mov.u32 %s, flag;\nsetp.eq.u32 %p, %thread, 0;\n@%p st.volatile.shared.u32 [%s], 0;\nbar.sync 0;\n"
    got = execute(
        init + body, {"a": LANES}, {"d": np.uint32}, regs=".reg .b32 %s;", shared=".shared .align 4 .b32 flag;"
    )["d"]
    assert got.tolist() == [9] + [5] * 31


def test_barrier_reductions_and_named_barriers() -> None:
    a = np.arange(128, dtype=np.uint32)
    got = execute(
        "setp.lt.u32 %p, %a, 100;\nbarrier.cta.red.popc.aligned.u32 %c, 1, %p;\nbar.red.and.pred %q, 2, 128, %p;\nselp.b32 %d, 1, 0, %q;\n"
        "bar.red.or.pred %q, 3, %p;\nselp.b32 %e, 1, 0, %q;",
        {"a": a},
        dict.fromkeys(("c", "d", "e"), np.uint32),
    )
    assert set(got["c"].tolist()) == {100}
    assert set(got["d"].tolist()) == {0}
    assert set(got["e"].tolist()) == {1}


def test_producer_consumer_named_barrier() -> None:
    body = (
        "mov.u32 %s, buf;\nsetp.lt.u32 %p, %thread, 32;\n@!%p bra CONSUMER;\nshl.b32 %t, %thread, 2;\nadd.u32 %t, %t, %s;\nst.shared.u32 [%t], %a;\n"
        "barrier.cta.arrive.aligned 4, 64;\nmov.u32 %d, 0;\nbra END;\nCONSUMER:\nbarrier.cta.sync.aligned 4, 64;\nsub.u32 %t, 63, %thread;\nshl.b32 %t, %t, 2;\nadd.u32 %t, %t, %s;\n"
        "ld.shared.u32 %d, [%t];\nEND:\n"
    )
    a = np.arange(64, dtype=np.uint32) * 3
    for schedule in ("eager", "random"):
        simlib.configure(schedule=schedule, seed=1)
        got = execute(
            body, {"a": a}, {"d": np.uint32}, regs=".reg .b32 %s, %t;", shared=".shared .align 4 .b8 buf[128];"
        )["d"]
        assert got[32:].tolist() == [int(a[63 - t]) for t in range(32, 64)]


ATOMS = {
    "add.u32": lambda o, v: o + v & 0xFFFFFFFF,
    "min.s32": lambda o, v: min(o, v),
    "max.u32": max,
    "xor.b32": lambda o, v: o ^ v,
    "exch.b32": lambda o, v: v,
    "inc.u32": lambda o, v: 0 if o >= v else o + 1,
    "dec.u32": lambda o, v: v if o == 0 or o > v else o - 1,
}


@pytest.mark.parametrize("op", ATOMS)
def test_atomics_serialise(op: str) -> None:
    text = HEAD.format(target="sm_90a") + (
        ".visible .entry k(.param .u64 c, .param .u64 a, .param .u64 d) {\n.reg .b64 %c, %a, %d, %o;\n.reg .b32 %t, %v, %r;\n"
        "ld.param.u64 %c, [c];\nld.param.u64 %a, [a];\nld.param.u64 %d, [d];\nmov.u32 %t, %tid.x;\nmul.wide.u32 %o, %t, 4;\nadd.s64 %a, %a, %o;\nadd.s64 %d, %d, %o;\n"
        f"ld.global.u32 %v, [%a];\natom.global.gpu.relaxed.{op} %r, [%c], %v;\nst.global.u32 [%d], %r;\nret;\n}}\n"
    ).replace("gpu.relaxed.", "")
    a = np.arange(1, 33, dtype=np.uint32) % 7 + 3
    cell, old = np.array([5], np.uint32), np.zeros(32, np.uint32)
    simlib.Module(text).launch("k", 1, 32, cell, a, old)
    value, seen = 5, []
    for v in a:
        seen.append(value)
        value = ATOMS[op](value, int(v))
    assert old.tolist() == seen
    assert int(cell[0]) == value


def test_float_and_vector_atomics() -> None:
    text = HEAD.format(target="sm_90a") + (
        ".visible .entry k(.param .u64 c) {\n.reg .b64 %c;\n.reg .b32 %h;\nld.param.u64 %c, [c];\nred.global.add.f32 [%c], 0f3FC00000;\nred.global.v2.f32.add [%c+8], {%f1, %f1};\n"
        "mov.b32 %h, 0x3C003C00;\nred.relaxed.gpu.global.add.noftz.f16x2 [%c+16], %h;\nred.global.add.u64 [%c+24], 2;\nret;\n}\n"
    ).replace(
        "red.global.v2.f32.add [%c+8], {%f1, %f1};",
        "red.relaxed.gpu.global.add.v2.f32 [%c+8], {0f40000000, 0f40400000};",
    )
    out = np.zeros(8, np.uint32)
    simlib.Module(text).launch("k", 1, 32, out)
    f = out.view(np.float32)
    assert (f[0], f[2], f[3]) == (48.0, 64.0, 96.0)
    assert out.view(np.float16)[8:10].tolist() == [32, 32]
    assert out.view(np.uint64)[3] == 64
