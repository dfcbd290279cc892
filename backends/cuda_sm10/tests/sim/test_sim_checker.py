# ruff: noqa: E501
"""Every rule of the checker finds its bug, and says nothing about the correct variant."""

from __future__ import annotations

import numpy as np
import pytest
import simlib
from lanes import HEAD

BAR = "mbarrier.init.shared::cta.b64 [bar], 1;\n"


def kernel(
    body: str, shared: str = ".shared .align 128 .b8 buf[1024];\n.shared .align 8 .b64 bar;\n", target: str = "sm_90a"
) -> str:
    return (
        HEAD.format(target=target)
        + shared
        + ".visible .entry k(.param .u64 g) {\n.reg .b64 %g, %a, %rd<4>;\n.reg .b32 %t, %w, %s, %v, %r<8>;\n.reg .pred %p, %q, %one;\n"
        "ld.param.u64 %g, [g];\nmov.u32 %t, %tid.x;\nshr.u32 %w, %t, 5;\nmov.u32 %s, buf;\nsetp.eq.u32 %one, %t, 0;\n"
        + body
        + "\nret;\n}\n"
    )


def findings(text: str, threads: int = 64, dev: int = simlib.SM90, size: int = 4096, **options: object) -> list[str]:
    simlib.configure(findings="report", **options)
    out = simlib.aligned(size, np.uint8, 1024)
    try:
        simlib.Module(text, dev).launch("k", 1, threads, out)
    except simlib.SimError as e:
        return [str(e)]
    return simlib.findings()


def expect(found: list[str], part: str) -> None:
    assert any(part in f for f in found), found


ST = "shl.b32 %r0, %t, 2;\nadd.u32 %r0, %r0, %s;\nst.shared.u32 [%r0], %t;\n"
LD = "sub.u32 %r1, 63, %t;\nshl.b32 %r1, %r1, 2;\nadd.u32 %r1, %r1, %s;\nld.shared.u32 %v, [%r1];\n"


@pytest.mark.parametrize("schedule", ["eager", "random", "lazy"])
def test_shared_race_and_barrier(schedule: str) -> None:
    race = findings(kernel(ST + LD), schedule=schedule)
    assert any("race" in f or "before it was written" in f for f in race)
    assert findings(kernel(ST + "bar.sync 0;\n" + LD), schedule=schedule) == []
    overwrite = ST + "bar.sync 0;\n" + LD + "st.shared.u32 [%r0], %v;\n"
    expect(findings(kernel(overwrite), schedule=schedule), "race (write after read)")


def test_cluster_barrier_halves_come_in_pairs() -> None:
    arrive, wait = "barrier.cluster.arrive.aligned;\n", "barrier.cluster.wait.aligned;\n"
    assert findings(kernel((arrive + wait) * 2)) == []
    expect(findings(kernel(arrive + wait + wait)), "barrier.cluster.wait without an arrive")
    expect(findings(kernel(wait)), "barrier.cluster.wait without an arrive")
    expect(findings(kernel(arrive + arrive + wait)), "barrier.cluster.arrive twice")


def test_uninitialised_shared_read() -> None:
    expect(findings(kernel("ld.shared.u32 %v, [%s+16];")), "read before it was written")


def test_global_race_and_release_acquire() -> None:
    write = "setp.eq.u32 %p, %t, 0;\n@%p st.global.u32 [%g], 7;\n"
    read = "setp.eq.u32 %q, %t, 32;\n@%q ld.global.u32 %v, [%g];\n"
    expect(findings(kernel(write + read)), "global memory race")
    flag = "@%p st.release.gpu.global.u32 [%g+64], 1;\n@!%q bra END;\nSPIN:\nld.{sem}.gpu.global.u32 %v, [%g+64];\nsetp.ne.u32 %p, %v, 1;\n@%p bra SPIN;\nld.global.u32 %v, [%g];\nEND:\n"
    head = write + "setp.eq.u32 %q, %t, 32;\n"
    assert findings(kernel(head + flag.replace("{sem}", "acquire"))) == []
    expect(findings(kernel(head + flag.replace("{sem}", "relaxed"))), "global memory race")
    assert (
        findings(
            kernel(
                head
                + flag.replace("{sem}", "relaxed").replace(
                    "ld.global.u32 %v, [%g];", "fence.acq_rel.gpu;\nld.global.u32 %v, [%g];"
                )
            )
        )
        == []
    )


BULK = "@%one cp.async.bulk.global.shared::cta.bulk_group [%g], [%s], 256;\n@%one cp.async.bulk.commit_group;\n"


def test_proxy_fence_before_bulk_store() -> None:
    wait = "@%one cp.async.bulk.wait_group 0;\n"
    expect(findings(kernel(ST + "bar.sync 0;\n" + BULK + wait)), "without fence.proxy.async")
    assert findings(kernel(ST + "fence.proxy.async.shared::cta;\nbar.sync 0;\n" + BULK + wait)) == []


def test_bulk_source_reused_before_wait() -> None:
    fenced = ST + "fence.proxy.async.shared::cta;\nbar.sync 0;\n" + BULK
    again = "bar.sync 0;\nst.shared.u32 [%r0], 5;\n"
    expect(findings(kernel(fenced + again)), "race (write after read)")
    assert findings(kernel(fenced + "@%one cp.async.bulk.wait_group.read 0;\n" + again)) == []


LOAD = (
    "@%one mbarrier.init.shared::cta.b64 [bar], 1;\n{fence}\nbar.sync 0;\n@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {bytes};\n"
    "@%one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%g], 256, [bar];\n{wait}\nshl.b32 %r0, %t, 2;\nadd.u32 %r0, %r0, %s;\nld.shared.u32 %v, [%r0];\n"
)
WAIT = "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;"


def load(fence: str = "@%one fence.mbarrier_init.release.cluster;", size: int = 256, wait: str = WAIT) -> str:
    # the fence at the end publishes nothing in time; without any, the kernel would be held to the rules of libcu++
    return kernel(LOAD.format(fence=fence, bytes=size, wait=wait) + "fence.proxy.async.shared::cta;\n")


@pytest.mark.parametrize("schedule", ["eager", "random", "lazy"])
def test_bulk_load_rules(schedule: str) -> None:
    assert findings(load(), schedule=schedule) == []
    assert findings(load(wait=""), schedule=schedule) != []
    expect(findings(load(fence=""), schedule=schedule), "init was not published")
    found = findings(load(size=272), schedule=schedule)
    assert any("deadlock" in f or "pending transaction" in f for f in found)


def test_deadlock_says_who_waits_for_what() -> None:
    text = findings(load(size=272))[0]
    assert "deadlock" in text
    assert "mbarrier phase" in text
    assert "tx 16" in text
    assert "PTX line" in text


def test_mbarrier_misuse() -> None:
    expect(findings(kernel("@%one mbarrier.arrive.shared::cta.b64 _, [bar];")), "before mbarrier.init")
    expect(findings(kernel("@%one " + BAR + "@%one st.shared.u32 [bar], 1;\n")), "live mbarrier are overwritten")
    expect(findings(kernel("@%one mbarrier.init.shared::cta.b64 [bar], 0;")), "outside 1 to 1048575")
    expect(findings(kernel("@%one " + BAR + "@%one mbarrier.arrive.shared::cta.b64 _, [bar], 2;\n")), "only 1 pending")


def test_bounds_alignment_and_read_only() -> None:
    expect(findings(kernel("ld.global.u32 %v, [%g+4096];")), "offset 4096")
    expect(findings(kernel("ld.global.u32 %v, [%g+2];")), "misaligned")
    expect(findings(kernel("mov.u32 %s, 0x400000;\nld.shared.u32 %v, [%s];")), "out of bounds: shared offset")
    out = np.zeros(64, np.uint32)
    with pytest.raises(simlib.SimError, match="read-only"):
        simlib.Module(kernel("st.global.u32 [%g], 1;")).launch("k", 1, 32, simlib.ReadOnly(out))
    assert not out.any()


def test_trap_and_assert_name_the_line() -> None:
    expect(findings(kernel("trap;")), "`trap;`")


TC = ".shared .align 128 .b8 buf[1024];\n.shared .align 8 .b64 bar;\n.shared .align 4 .b32 at;\n"
ALLOC = "setp.eq.u32 %p, %w, 0;\n@%p tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 32;\nbar.sync 0;\nld.shared.u32 %r7, [at];\n"
FREE = "bar.sync 0;\n@%p tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 32;\n"
TST = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%t};\n"
TLD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%r7];\n"


def tensor(body: str) -> list[str]:
    return findings(kernel(body, TC, "sm_100a"), threads=128, dev=simlib.SM100)


def test_tensor_memory_rules() -> None:
    good = (
        ALLOC + TST + "tcgen05.wait::st.sync.aligned;\n" + TLD + "tcgen05.wait::ld.sync.aligned;\nadd.u32 %v, %v, 1;\n"
    )
    assert tensor(good + FREE) == []
    expect(tensor(ALLOC + TLD + "tcgen05.wait::ld.sync.aligned;\n" + FREE), "read before it was written")
    expect(
        tensor(
            ALLOC
            + TST
            + "tcgen05.wait::st.sync.aligned;\n"
            + TLD
            + "add.u32 %v, %v, 1;\ntcgen05.wait::ld.sync.aligned;\n"
            + FREE
        ),
        "still owns it",
    )
    expect(
        tensor(ALLOC + TST + TLD + "tcgen05.wait::st.sync.aligned;\ntcgen05.wait::ld.sync.aligned;\n" + FREE), "race"
    )
    expect(tensor(good), "without freeing tensor memory")
    expect(tensor(ALLOC + "add.u32 %r7, %r7, 64;\n" + TST + "tcgen05.wait::st.sync.aligned;\n"), "not allocated")
    expect(tensor(ALLOC.replace(", 32;", ", 48;")), "power of two")
    expect(tensor(ALLOC + "mov.u32 %r6, 0x200000;\nadd.u32 %r7, %r7, %r6;\n" + TST), "may access tensor memory lanes")


def test_wgmma_needs_its_fence_and_wait() -> None:
    """The accumulator is read while a wgmma owns it; a fence is missing after the accumulator was written."""
    mma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r0, %r1, %r2, %r3}, %rd0, %rd0, 0, 1, 1, 0, 0;\n"
    fill = (
        "W0:\nshl.b32 %r6, %t, 4;\nadd.u32 %r6, %r6, %s;\nst.shared.v4.u32 [%r6], {0, 0, 0, 0};\nfence.proxy.async.shared::cta;\nbar.sync 0;\nmov.u32 %r0, 0;\n"
        "and.b32 %r5, %s, 0x3ffff;\nshr.u32 %r5, %r5, 4;\ncvt.u64.u32 %rd0, %r5;\nor.b64 %rd0, %rd0, 0x0000000800400000;\n"
    )
    shared = ".shared .align 1024 .b8 buf[2048];\n.shared .align 8 .b64 bar;\n"
    done = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nadd.f32 %v, %r0, %r0;\n"
    good = fill + "wgmma.fence.sync.aligned;\n" + mma + done
    assert findings(kernel(good, shared), threads=128) == []
    expect(findings(kernel(fill + mma + done, shared), threads=128), "without wgmma.fence")
    early = (
        fill
        + "wgmma.fence.sync.aligned;\n"
        + mma
        + "wgmma.commit_group.sync.aligned;\nadd.f32 %v, %r0, %r0;\nwgmma.wait_group.sync.aligned 0;\n"
    )
    expect(findings(kernel(early, shared), threads=128), "still owns it")


def test_findings_carry_the_source_line() -> None:
    text = kernel(".loc 1 42 3\nst.global.u32 [%g], %t;\n").replace(
        ".address_size 64\n", '.address_size 64\n.file 1 "my_kernel.cu"\n'
    )
    expect(findings(text), "(my_kernel.cu:42)")


def test_checker_can_be_switched_off() -> None:
    assert findings(kernel(ST + LD), checker="off") == []
