"""The pool of registers that `setmaxnreg` moves between warpgroups: what hangs a GPU is a deadlock here too."""

from __future__ import annotations

import numpy as np
import pytest
import simlib

# One producer warpgroup and two consumers; {bounds} and the registers each asks for vary.
KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {bounds} {{
 .reg .b64 %o, %a; .reg .b32 %t, %w; .reg .pred %p;
 ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; shr.u32 %w, %t, 7; setp.eq.u32 %p, %w, 0; @%p bra PRODUCER;
 {consumer}
 bra DONE;
PRODUCER: {producer}
DONE: mul.wide.u32 %a, %t, 4; add.u64 %a, %a, %o; st.global.u32 [%a], %w; ret;
}}
"""
MEET = " bar.sync 1, 384;"  # keeps the producer, and what it holds, until the consumers have what they asked for
BOUNDS = ".maxntid 384, 1, 1 .minnctapersm 1"


def launch(producer: str, consumer: str, bounds: str = BOUNDS) -> list[str]:
    """Runs the kernel under three schedules; every thread must have written its warpgroup's number."""
    text = KERNEL.format(bounds=bounds, producer=producer, consumer=consumer)
    found: list[str] = []
    for schedule in ("eager", "random", "lazy"):
        simlib.configure(schedule=schedule, findings="report")
        out = np.zeros(384, np.uint32)
        simlib.Module(text, simlib.SM90).launch("k", 1, 384, out)
        assert out.tolist() == [t // 128 for t in range(384)]
        found += simlib.findings()
    return found


def dec(count: int) -> str:
    return f"setmaxnreg.dec.sync.aligned.u32 {count};"


def inc(count: int) -> str:
    return f"setmaxnreg.inc.sync.aligned.u32 {count};"


@pytest.mark.parametrize(("low", "high"), [(24, 240), (40, 232), (72, 216)])
def test_what_fits_into_384_threads_of_168(low: int, high: int) -> None:
    assert launch(dec(low) + MEET, inc(high) + MEET) == []


@pytest.mark.parametrize(("low", "high"), [(48, 232), (32, 240)])
def test_more_than_was_given_back_waits_for_ever(low: int, high: int) -> None:
    with pytest.raises(simlib.SimError, match=r"(?s)deadlock.*registers that other warps give back"):
        launch(dec(low) + MEET, inc(high) + MEET)


def test_warps_that_exit_leave_their_registers() -> None:
    assert launch("", inc(240)) == []


@pytest.mark.parametrize("bounds", [".maxnreg 128", ".reqntid 384, 1, 1 .maxnreg 128", ".maxntid 512, 1, 1"])
def test_bounds_set_what_there_is(bounds: str) -> None:
    assert launch(dec(64) + MEET, inc(160) + MEET, bounds) == []
    with pytest.raises(simlib.SimError, match="registers that other warps give back"):
        launch(dec(64) + MEET, inc(168) + MEET, bounds)


def test_without_bounds_the_pool_is_unknown() -> None:
    assert launch(dec(48), inc(240), "") == []


def test_less_than_a_warp_has_is_there_at_once() -> None:
    assert launch(inc(160), dec(176)) == []


def test_warps_of_a_warpgroup_agree() -> None:
    odd = ".reg .b32 %l; .reg .pred %q; shr.u32 %l, %t, 5; and.b32 %l, %l, 3; setp.eq.u32 %q, %l, 3; @%q bra ODD; "
    found = launch(odd + dec(40) + " bra DONE; ODD: " + dec(24), inc(200))
    assert any("another warp of the warpgroup asks for" in text for text in found)


@pytest.mark.parametrize("count", [16, 250, 264])
def test_counts_outside_the_rule_do_not_decode(count: int) -> None:
    with pytest.raises(simlib.SimError, match="multiple of 8 from 24 to 256"):
        launch(dec(count), inc(160))
