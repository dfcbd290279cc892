# ruff: noqa: E501 (PTX statements stay whole)
"""cp.async and its groups, st.async and red.async between CTAs, cluster launch control, tcgen05.cp."""

from __future__ import annotations

import numpy as np
import pytest
import simlib
from lanes import HEAD
from test_sim_matrix import REGS, TC_ALLOC, TC_FREE, TC_HEAD

SCHEDULES = ["eager", "lazy", "random"]
COPY = (
    ".shared .align 16 .b8 buf[1024];\n.shared .align 8 .b64 bar;\n.visible .entry k(.param .u64 i, .param .u64 o) {\n"
)
OWN = "mov.u32 %t, %tid.x;\nmov.u32 %s, buf;\nld.param.u64 %i, [i];\nld.param.u64 %o, [o];\nshl.b32 %u, %t, 4;\nadd.u32 %u, %u, %s;\nmul.wide.u32 %x, %t, 16;\nadd.s64 %i, %i, %x;\nadd.s64 %o, %o, %x;\n"
BACK = "ld.shared.v4.u32 {%c0, %c1, %c2, %c3}, [%u];\nst.global.v4.u32 [%o], {%c0, %c1, %c2, %c3};\nret;\n}\n"


def copied(body: str, schedule: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    simlib.configure(schedule=schedule, seed=6, findings="report")
    a, out = np.arange(256, dtype=np.uint32) + 1, np.zeros(256, np.uint32)
    simlib.Module(HEAD.format(target="sm_90a") + COPY + REGS + OWN + body + BACK).launch("k", 1, 64, a, out)
    return a, out, simlib.findings()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cp_async_groups(schedule: str) -> None:
    """The first group must be done, the second may stay open; a partial source is filled with zeros."""
    two = "cp.async.ca.shared.global [%u], [%i], 8;\ncp.async.commit_group;\ncp.async.ca.shared.global [%u+8], [%i], 8, 4;\ncp.async.commit_group;\n"
    a, out, found = copied(two + "cp.async.wait_group 0;\n", schedule)
    want = a.reshape(64, 4).copy()
    want[:, 2], want[:, 3] = want[:, 0], 0
    assert np.array_equal(out.reshape(64, 4), want)
    assert found == []
    one = "cp.async.cg.shared.global [%u], [%i], 16;\n"
    a, out, found = copied(one + "cp.async.wait_all;\n", schedule)
    assert np.array_equal(out, a)
    assert found == []
    assert copied(one + "cp.async.commit_group;\ncp.async.wait_group 1;\n", schedule)[2] != []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("noinc", [True, False])
def test_cp_async_arrives_on_an_mbarrier(schedule: str, noinc: bool) -> None:
    count = 64 if noinc else 1
    arrive = (
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];\n"
        if noinc
        else "cp.async.mbarrier.arrive.shared::cta.b64 [bar];\nbar.sync 0;\n@%one mbarrier.arrive.shared::cta.b64 _, [bar];\n"
    )
    body = f"setp.eq.u32 %one, %t, 0;\n@%one mbarrier.init.shared::cta.b64 [bar], {count};\nbar.sync 0;\ncp.async.cg.shared.global [%u], [%i], 16;\n{arrive}W:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;\nxor.b32 %u, %u, 16;\n"
    a, out, found = copied(body, schedule)
    assert np.array_equal(out.reshape(32, 2, 4), a.reshape(32, 2, 4)[:, ::-1])
    assert found == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_st_async_and_red_async_reach_the_neighbour(schedule: str) -> None:
    text = (
        HEAD.format(target="sm_90a")
        + COPY
        + REGS
        + (
            "mov.u32 %t, %tid.x;\nmov.u32 %s, buf;\nld.param.u64 %o, [o];\nsetp.eq.u32 %one, %t, 0;\n@%one mbarrier.init.shared::cta.b64 [bar], 1;\n@%one st.shared.u32 [%s+128], 5;\n@%one fence.mbarrier_init.release.cluster;\n"
            "@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 256;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
            "mov.u32 %w, %cluster_ctarank;\nxor.b32 %v, %w, 1;\nmapa.shared::cluster.u32 %u, %s, %v;\nmov.u32 %c0, bar;\nmapa.shared::cluster.u32 %c1, %c0, %v;\n"
            "shl.b32 %c2, %t, 2;\nadd.u32 %c2, %c2, %u;\nmad.lo.u32 %c3, %w, 100, %t;\nst.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%c2], %c3, [%c1];\n"
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%u+128], 2, [%c1];\n"
            "W:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;\nshl.b32 %c2, %t, 2;\nadd.u32 %c2, %c2, %s;\nld.shared.u32 %c3, [%c2];\nld.shared.u32 %c4, [%s+128];\n"
            "mad.lo.u32 %w, %w, 32, %t;\nmul.wide.u32 %x, %w, 8;\nadd.s64 %o, %o, %x;\nst.global.v2.u32 [%o], {%c3, %c4};\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nret;\n}\n"
        )
    )
    simlib.configure(schedule=schedule, seed=8)
    out = np.zeros((2, 32, 2), np.uint32)
    simlib.Module(text).launch("k", 2, 32, np.zeros(1, np.uint32), out, cluster=2)
    for rank in range(2):
        assert out[rank, :, 0].tolist() == [100 * (1 - rank) + t for t in range(32)]
        assert set(out[rank, :, 1].tolist()) == {5 + 64}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cluster_launch_control_hands_out_every_cta_once(schedule: str) -> None:
    """Resident CTAs steal the ids of those not yet started; each id of the grid is worked on exactly once."""
    text = HEAD.format(target="sm_100a") + (
        ".shared .align 16 .b8 resp[16];\n.shared .align 8 .b64 bar;\n.visible .entry k(.param .u64 o) {\n.reg .b64 %o, %x;\n.reg .b128 %r;\n.reg .b32 %id, %ph;\n.reg .pred %p;\n"
        "ld.param.u64 %o, [o];\nmov.u32 %id, %ctaid.x;\nmov.u32 %ph, 0;\nmbarrier.init.shared::cta.b64 [bar], 1;\nfence.mbarrier_init.release.cluster;\n"
        "NEXT:\nmul.wide.u32 %x, %id, 4;\nadd.s64 %x, %x, %o;\nred.global.add.u32 [%x], 1;\nfence.proxy.async.shared::cta;\n"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;\nclusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [resp], [bar];\n"
        "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], %ph;\n@!%p bra W;\nxor.b32 %ph, %ph, 1;\nld.shared.b128 %r, [resp];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p, %r;\n@!%p bra END;\nclusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%id, _, _, _}, %r;\nbra NEXT;\nEND:\nret;\n}\n"
    )
    simlib.configure(schedule=schedule, seed=9, resident_ctas=3)
    out = np.zeros(20, np.uint32)
    simlib.Module(text, simlib.SM100).launch("k", 20, 1, out)
    assert out.tolist() == [1] * 20


@pytest.mark.parametrize(
    ("shape", "rows", "lanes"),
    [
        ("128x128b", 128, lambda r: [r]),
        ("128x256b", 128, lambda r: [r]),
        ("64x128b.warpx2::02_13", 64, lambda r: [r, r + 64]),
        ("64x128b.warpx2::01_23", 64, lambda r: [r % 32 + r // 32 * 64, r % 32 + r // 32 * 64 + 32]),
        ("32x128b.warpx4", 32, lambda r: [r, r + 32, r + 64, r + 96]),
    ],
)
def test_tcgen05_cp(shape: str, rows: int, lanes: object) -> None:
    """Rows of 16-byte chunks (8-row core matrices, chunks of one row group side by side) land in the documented lanes."""
    chunks = 2 if "256b" in shape else 1
    cols = 4 * chunks
    a = np.arange(rows * cols, dtype=np.uint32).reshape(rows // 8, 8, chunks, 4)
    image = np.ascontiguousarray(a.transpose(0, 2, 1, 3))
    words = image.size
    desc = 8 << 16 | 8 * chunks << 32 | 1 << 46
    fill = "mov.u32 %t, %tid.x;\nld.param.u64 %i, [i];\nld.param.u64 %o, [o];\nmov.u32 %s, buf;\nmov.u32 %v, %t;\nF:\nshl.b32 %u, %v, 2;\ncvt.u64.u32 %x, %u;\nadd.s64 %x, %x, %i;\nld.global.u32 %w, [%x];\nadd.u32 %u, %u, %s;\nst.shared.u32 [%u], %w;\nadd.u32 %v, %v, 128;\n"
    fill += f"setp.lt.u32 %p, %v, {words};\n@%p bra F;\nfence.proxy.async.shared::cta;\nbar.sync 0;\nand.b32 %u, %s, 0x3ffff;\nshr.u32 %u, %u, 4;\ncvt.u64.u32 %x, %u;\nadd.s64 %da, %x, {desc};\n"
    regs = ", ".join(f"%r{c}" for c in range(cols))
    body = (
        fill
        + TC_ALLOC
        + (
            f"@%one tcgen05.cp.cta_group::1.{shape} [%tm], %da;\n@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\nW:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;\n"
            f"tcgen05.fence::after_thread_sync;\ntcgen05.ld.sync.aligned.32x32b.x{cols}.b32 {{{regs}}}, [%tm];\ntcgen05.wait::ld.sync.aligned;\nmul.wide.u32 %x, %t, {4 * cols};\nadd.s64 %o, %o, %x;\n"
            + "".join(f"st.global.u32 [%o+{4 * c}], %r{c};\n" for c in range(cols))
        )
    )
    out = np.zeros((128, cols), np.uint32)
    text = HEAD.format(target="sm_100a") + TC_HEAD.format(size=words * 4) + REGS + body + TC_FREE
    simlib.Module(text, simlib.SM100).launch("k", 1, 128, image, out)
    for r in range(rows):
        for lane in lanes(r):  # type: ignore[operator]
            assert out[lane].tolist() == a.reshape(rows, cols)[r].tolist()
