# ruff: noqa: E501
"""Whole kernels: exact results and no finding under every schedule, speed, and the mutation score."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import gemms
import pytest
import simlib

sys.path.insert(0, str(Path(__file__).parents[2] / "deepinfer_cuda" / "sim"))
from mutation import Mutant, mutants

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


STRIDE = 2  # every second mutant in the quick tier

# Mutants that change nothing observable, each with its reason. A mutant is matched by kind and statement.
EQUIVALENT: dict[tuple[str, str], str] = {}


def score(name: str, text: str, run: Callable[[str], bool], stride: int = 1) -> tuple[int, int, list[Mutant]]:
    caught, total, missed, reached = 0, 0, [], {}
    for i, mutant in enumerate(mutants(text)):
        if i % stride or (mutant.kind, mutant.statement) in EQUIVALENT:
            continue
        if mutant.line not in reached:
            reached[mutant.line] = bool(gemms.outcome(lambda m=mutant: run(m.probe), checker="off"))
        if not reached[mutant.line]:
            continue
        total += 1
        runs = [("eager", 0), ("lazy", 1), ("random", 2), ("random", 3)]
        if any(
            gemms.outcome(lambda m=mutant: run(m.text), schedule=s, seed=seed, stall_instructions=200000)
            for s, seed in runs
        ):
            caught += 1
        else:
            missed.append(mutant)
    print(f"\nmutation score of {name}: {caught} of {total}" + "".join(f"\n  missed: {m}" for m in missed))
    return caught, total, missed


def one_kernel(text: str, entry: str) -> str:
    """The module with a single entry, so that no mutant lands in a kernel that is not run."""
    parts = text.split(".visible .entry ")
    return parts[0] + "".join(".visible .entry " + p for p in parts[1:] if p.startswith(entry + "("))


@pytest.mark.parametrize("name", ["sm90", "sm100_1cta", "sm100_2cta"])
def test_mutation_score(name: str) -> None:
    """At least 95 % of the mutants are caught by an error, a finding, a deadlock or a wrong result; the misses are printed."""
    if name == "sm90":
        caught, total, missed = score(name, gemms.text("sm90_gemm"), gemms.sm90, stride=STRIDE)
    else:
        ctas = int(name[6])
        caught, total, missed = score(
            name,
            one_kernel(gemms.text("sm100_gemm"), f"gemm_{ctas}cta"),
            lambda t: gemms.sm100(t, ctas, k=320, tiles=3),
            stride=STRIDE,
        )
    assert total > 20
    assert caught >= 0.95 * total, [str(m) for m in missed]
