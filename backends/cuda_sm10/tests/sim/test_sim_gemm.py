"""Whole kernels: exact results and no finding under every schedule, and speed."""

from __future__ import annotations

import time

import gemms
import pytest
import simlib

SCHEDULES = [("eager", 0), ("lazy", 0), ("lazy", 1), ("random", 0), ("random", 1), ("random", 2)]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_sm90_gemm(schedule: str, seed: int) -> None:
    assert (
        gemms.outcome(
            lambda: gemms.sm90(gemms.text("sm90_gemm"), m=128), schedule=schedule, seed=seed, spurious_waits="on"
        )
        == ""
    )


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_sm100_gemm(schedule: str, seed: int, ctas: int) -> None:
    assert (
        gemms.outcome(
            lambda: gemms.sm100(gemms.text("sm100_gemm"), ctas, k=320, tiles=3),
            schedule=schedule,
            seed=seed,
            spurious_waits="on",
        )
        == ""
    )


def test_speed_of_a_two_cta_gemm() -> None:
    """256x128x512 with the checker: far under a second of simulation. The figures are printed (pytest -s)."""
    simlib.configure()
    start = time.process_time()
    assert gemms.sm100(gemms.text("sm100_gemm"), 2)
    cpu = time.process_time() - start
    s = simlib.statistics()
    print(
        f"\n2-CTA 256x128x512: {cpu:.3f} s CPU, {s.warp_instructions} warp instructions, {s.mma_macs / 1e6:.1f} M MAC, "
        f"{s.thread_instructions / max(cpu, 1e-9) / 1e6:.2f} M thread instructions/s"
    )
    assert s.mma_macs == 256 * 128 * 512
    assert cpu < 1.0
