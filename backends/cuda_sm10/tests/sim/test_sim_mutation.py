# ruff: noqa: E501 (PTX statements stay whole)
"""The mutation score: which share of broken kernels the simulator catches. Figures and misses are printed (pytest -s).

Only mutants on lines that the test problem reaches count; a trap in place of the statement tells. A mutant is caught when any
schedule ends in an error, a finding, a deadlock or a wrong result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import gemms
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "deepinfer_cuda" / "sim"))
from mutation import Mutant, mutants

Run = Callable[[str], bool]
QUICK = [("eager", 0), ("lazy", 1), ("random", 2), ("random", 3)]
LONG = [("eager", 0), ("lazy", 1), ("lazy", 2), *(("random", seed) for seed in range(3, 20))]


def score(name: str, text: str, run: Run, stride: int, runs: list[tuple[str, int]]) -> tuple[float, list[Mutant]]:
    """Share of reached mutants that any run catches, and the others."""
    for schedule, seed in runs:  # the kernel itself must be clean under the very same options
        assert not gemms.outcome(lambda: run(text), schedule=schedule, seed=seed, stall_instructions=200000)
    reached: dict[int, bool] = {}
    total, missed, hits = 0, [], 0
    for mutant in list(mutants(text))[::stride]:
        if mutant.line not in reached:
            reached[mutant.line] = bool(gemms.outcome(lambda m=mutant: run(m.probe), checker="off"))
        if not reached[mutant.line]:
            continue
        total += 1
        caught = 0
        for schedule, seed in runs:
            options = {"schedule": schedule, "seed": seed, "stall_instructions": 200000}
            caught += bool(gemms.outcome(lambda m=mutant: run(m.text), **options))
            if caught and runs is QUICK:
                break
        hits += caught
        if not caught:
            missed.append(mutant)
    print(f"\nmutation score of {name}: {total - len(missed)} of {total}", end="")
    if runs is LONG:
        print(f"; a single schedule catches {hits / (total * len(runs)):.1%}", end="")
    print("".join(f"\n  missed: {m}" for m in missed))
    assert total > 20
    return 1 - len(missed) / total, missed


def one_kernel(text: str, entry: str) -> str:
    """The module with a single entry, so that no mutant lands in a kernel that is not run."""
    head, *kernels = text.split(".visible .entry ")
    return head + "".join(".visible .entry " + k for k in kernels if k.startswith(entry + "("))


def case(name: str) -> tuple[str, Run]:
    if name == "sm90":
        return gemms.text("sm90_gemm"), gemms.sm90
    ctas = int(name[6])
    text = one_kernel(gemms.text("sm100_gemm"), f"gemm_{ctas}cta")
    return text, lambda t: gemms.sm100(t, ctas, k=320, tiles=3)


@pytest.mark.parametrize("name", ["sm90", "sm100_1cta", "sm100_2cta"])
def test_mutation_score(name: str) -> None:
    """Every second mutant, four schedules."""
    share, missed = score(name, *case(name), 2, QUICK)
    assert share >= 0.95, [str(m) for m in missed]


@pytest.mark.long
@pytest.mark.parametrize("name", ["sm90", "sm100_1cta", "sm100_2cta"])
def test_mutation_score_over_twenty_seeds(name: str) -> None:
    share, missed = score(name, *case(name), 1, LONG)
    assert share >= 0.95, [str(m) for m in missed]
