# ruff: noqa: E501
"""Forms of sm_100 that no H200 can confirm, and idioms of hand-written kernels: results against plain statements of their rules."""

from __future__ import annotations

import numpy as np
import pytest
import simlib
from lanes import HEAD, execute

LANES = np.arange(32, dtype=np.uint32)
RNG = np.random.default_rng


def run(
    body: str,
    words: int,
    threads: int = 32,
    shared: str = "",
    args: tuple[np.ndarray, ...] = (),
    dev: int = simlib.SM100,
) -> np.ndarray:
    """Parameters o (the result), then `args`; registers %t (thread), %r*, %x*."""
    names = ["o", *(f"i{j}" for j in range(len(args)))]
    text = (
        HEAD.format(target="sm_90a" if dev == simlib.SM90 else "sm_100a")
        + shared
        + ".visible .entry k("
        + ", ".join(f".param .u64 p_{n}" for n in names)
        + ") {\n"
        ".reg .b32 %r<80>, %t; .reg .b64 %x<8>, %o; .reg .pred %p, %one;\n"
        + "".join(f".reg .b64 %{n}; ld.param.u64 %{n}, [p_{n}];\n" for n in names[1:])
        + "ld.param.u64 %o, [p_o]; mov.u32 %t, %tid.x; setp.eq.u32 %one, %t, 0;\n"
        + body
        + "\nret; }\n"
    )
    out = np.zeros(words, np.uint32)
    simlib.Module(text, dev).launch("k", 1, threads, out, *args)
    return out


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count: int) -> None:
    """Row r of a stored 8 x 16 matrix holds, at byte c, byte r%2 + 2(c/8) of lane 4(c%8) + r/2 (CuTe SM100_U8x4_STSM_T)."""
    v = RNG(1).integers(0, 2**32, (32, 4), np.uint64).astype(np.uint32)
    regs = ", ".join(f"%r{j}" for j in range(count))
    body = (
        "mul.wide.u32 %x0, %t, 16; add.s64 %x0, %x0, %i0; ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%x0];\n"
        "mov.u32 %r9, buf; shl.b32 %r10, %t, 4; add.u32 %r10, %r10, %r9;\n"
        f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r10], {{{regs}}}; bar.warp.sync 0xffffffff;\n"
        f"setp.lt.u32 %p, %t, {8 * count}; @!%p ret; ld.shared.v4.u32 {{%r0, %r1, %r2, %r3}}, [%r10];\n"
        "mul.wide.u32 %x0, %t, 16; add.s64 %x0, %x0, %o; st.global.v4.u32 [%x0], {%r0, %r1, %r2, %r3};"
    )
    got = (
        run(body, 32 * count, shared=".shared .align 128 .b8 buf[512];\n", args=(v,))
        .view(np.uint8)
        .reshape(count, 8, 16)
    )
    for m in range(count):
        for r in range(8):
            assert got[m, r].tolist() == [
                int(v[c % 8 * 4 + r // 2, m]) >> 8 * (r % 2 + 2 * (c // 8)) & 255 for c in range(16)
            ]


@pytest.mark.parametrize(("shape", "repeat"), [("32x32b", 2), ("16x64b", 2), ("16x128b", 1), ("16x256b", 1)])
def test_packed_tensor_memory_loads(shape: str, repeat: int) -> None:
    """.pack::16b: register r is made of the low halves of columns 2c and 2c + 1, c the column of the plain form (CuTe ..._16b atoms)."""
    per = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}[shape] * repeat
    place = {
        "32x32b": lambda t, r: (t, r),
        "16x64b": lambda t, r: (t // 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)),
        "16x128b": lambda t, r: (t // 4 + 8 * (r & 1), 4 * (r // 2) + t % 4),
        "16x256b": lambda t, r: (t // 4 + 8 * (r >> 1 & 1), 8 * (r // 4) + 2 * (t % 4) + (r & 1)),
    }[shape]
    cols = 16
    fill = "".join(f"mad.lo.u32 %r{j}, %t, {cols}, {j + 7 * 65536};\n" for j in range(cols))
    put = ", ".join(f"%r{j}" for j in range(cols))
    get = ", ".join(f"%r{40 + j}" for j in range(per))
    body = (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 32; ld.shared.u32 %r30, [at];\n"
        + fill
        + f"tcgen05.st.sync.aligned.32x32b.x{cols}.b32 [%r30], {{{put}}}; tcgen05.wait::st.sync.aligned;\n"
        f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.pack::16b.b32 {{{get}}}, [%r30]; tcgen05.wait::ld.sync.aligned;\n"
        f"mul.wide.u32 %x0, %t, {4 * per}; add.s64 %x0, %x0, %o;\n"
        + "".join(f"st.global.u32 [%x0+{4 * j}], %r{40 + j};\n" for j in range(per))
        + "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 32;"
    )
    got = run(body, 32 * per, shared=".shared .align 4 .b32 at;\n").reshape(32, per)
    for t in range(32):
        for r in range(per):
            lane, col = place(t, r)
            low, high = lane * cols + 2 * col, lane * cols + 2 * col + 1
            assert got[t, r] == low | high << 16, (t, r)


def test_zero_fill_in_bulk() -> None:
    body = (
        "mov.u32 %r0, buf; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r0; st.shared.u32 [%r1], 0xffffffff; bar.sync 0;\n"
        "@%one st.bulk.weak.shared::cta [%r0+16], 64, 0; bar.sync 0; ld.shared.u32 %r2, [%r1];\n"
        "mul.wide.u32 %x0, %t, 4; add.s64 %x0, %x0, %o; st.global.u32 [%x0], %r2;"
    )
    got = run(body, 32, shared=".shared .align 16 .b8 buf[128];\n")
    assert got.tolist() == [0xFFFFFFFF] * 4 + [0] * 16 + [0xFFFFFFFF] * 12


def test_asynchronous_global_store_and_sum() -> None:
    body = "@%one st.async.release.gpu.global.b32 [%o], 41;\nred.async.release.gpu.global.add.u32 [%o+4], %t;"
    assert run(body, 2).tolist() == [41, 31 * 16]


def test_stack_allocations_nest() -> None:
    body = (
        "stacksave.u64 %x1; alloca.u64 %x2, 64; alloca.u64 %x3, 32, 32; st.local.u32 [%x2], %t; st.local.u32 [%x3+28], 7;\n"
        "ld.local.u32 %r1, [%x2]; ld.local.u32 %r2, [%x3+28]; stackrestore.u64 %x1; alloca.u64 %x4, 16; setp.eq.u64 %p, %x2, %x4;\n"
        "selp.b32 %r3, 100, 0, %p; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;\n"
        "mul.wide.u32 %x0, %t, 4; add.s64 %x0, %x0, %o; st.global.u32 [%x0], %r1;"
    )
    assert run(body, 32, dev=simlib.SM90).tolist() == [t + 107 for t in range(32)]


def test_vector_registers() -> None:
    got = execute("mov.v4.u32 %v, %tid; add.u32 %v.y, %v.x, %a; mov.v4.u32 %w, {%v.y, %v.x, 5, 6}; add.u32 %d, %w.x, %w.z;",
                  {"a": LANES}, {"d": np.uint32}, regs=".reg .v4 .u32 %v, %w;\n")  # fmt: skip
    assert got["d"].tolist() == [2 * t + 5 for t in range(32)]


def test_three_operand_magnitudes() -> None:
    a = np.array([1, -5, 2, np.nan], np.float32).repeat(8)
    b = np.array([-3, 1, np.nan, np.nan], np.float32).repeat(8)
    got = execute("max.abs.f32 %d, %a, %b, %a; min.NaN.abs.f32 %e, %a, %b, %b;", {"a": a.view(np.uint32), "b": b.view(np.uint32)},
                  {"d": np.uint32, "e": np.uint32}, dev=simlib.SM100)  # fmt: skip
    assert got["d"].view(np.float32)[::8][:3].tolist() == [3.0, 5.0, 2.0]
    assert got["e"].view(np.float32)[::8][:2].tolist() == [1.0, 1.0]
    assert np.isnan(got["e"].view(np.float32)[16:]).all()


def test_video_parts_and_masks() -> None:
    a = np.array([0x01FF7F80] * 32, np.uint32)
    got = execute(
        "vadd.s32.s32.s32 %d, %a.b2, %a.h0; vadd4.u32.u32.u32.sat %e, %a, %a, %a; vset4.u32.u32.ge.add %f, %a, 0x00ff8080, 5;",
        {"a": a}, dict.fromkeys(("d", "e", "f"), np.uint32),
    )  # fmt: skip
    assert int(got["d"][0]) == 0x7F80 - 1
    assert int(got["e"][0]) == 0x02FFFEFF
    assert int(got["f"][0]) == 5 + 3


def test_rows_for_each_sub_partition() -> None:
    """tcgen05.cp.4x256b: row r of shared memory lands in lane 32r of the address (CuTe SM100_UTCCP_4dp256bit)."""
    body = (
        "mov.u32 %r0, buf; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r0; setp.lt.u32 %p, %t, 64; @%p st.shared.u32 [%r1], %t;\n"
        "@%one mbarrier.init.shared::cta.b64 [bar], 1; @%one fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;\n"
        "setp.lt.u32 %p, %t, 32; @%p tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 32; bar.sync 0; ld.shared.u32 %r30, [at];\n"
        "mov.u32 %r2, 0; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r30], {%r2, %r2, %r2, %r2, %r2, %r2, %r2, %r2}; tcgen05.wait::st.sync.aligned;\n"
        "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;\n"
        "shr.u32 %r3, %r0, 4; and.b32 %r3, %r3, 0x3fff; cvt.u64.u32 %x1, %r3; or.b64 %x1, %x1, 0x400800080000;\n"
        "add.u32 %r4, %r30, 0x1f0000; @%one tcgen05.cp.cta_group::1.4x256b [%r4], %x1;\n"
        "@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\n"
        "W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0; @!%p bra W; tcgen05.fence::after_thread_sync;\n"
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r40, %r41, %r42, %r43, %r44, %r45, %r46, %r47}, [%r30]; tcgen05.wait::ld.sync.aligned;\n"
        "mul.wide.u32 %x0, %t, 32; add.s64 %x0, %x0, %o; st.global.v4.u32 [%x0], {%r40, %r41, %r42, %r43}; st.global.v4.u32 [%x0+16], {%r44, %r45, %r46, %r47};\n"
        "tcgen05.fence::before_thread_sync; bar.sync 0; setp.lt.u32 %p, %t, 32; @%p tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 32;"
    )
    got = run(
        body,
        1024,
        threads=128,
        shared=".shared .align 1024 .b8 buf[256]; .shared .align 8 .b64 bar; .shared .align 4 .b32 at;\n",
    ).reshape(128, 8)
    # no swizzle: core matrices of 8 rows by 16 bytes, the second one 128 bytes further on
    for lane in range(128):
        row = lane // 32
        want = [4 * row + c % 4 + 32 * (c // 4) for c in range(8)] if lane % 32 == 31 else [0] * 8
        assert got[lane].tolist() == want, lane
