"""Mutants are caught: a few on every run, all of them in the long tier (see asc_mutants.py)."""

from __future__ import annotations

import pytest
from asc_mutants import ACCEPTED, NUMBERS, judge, score
from deepinfer_ascend950.device import open_simulated
from deepinfer_ascend950.drivers.sim import SimDriver

QUICK = [("gemm_plain", 1), ("gemm_plain", 7), ("ep_reduce", 50), ("gemm_mx", 29), ("swiglu", 91)]


def test_there_are_enough() -> None:
    assert sum(len(numbers) for numbers in NUMBERS.values()) >= 40
    assert all(number in NUMBERS[source] for source, number in [*QUICK, *ACCEPTED])


@pytest.mark.parametrize(("source", "number"), QUICK)
def test_a_few(sim: SimDriver, source: str, number: int) -> None:
    sim.set_option("strict", 1)
    assert not judge(open_simulated(0), source, 0)[0]
    assert judge(open_simulated(0), source, number)[0]


@pytest.mark.long
def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    """All mutants; prints the figure."""
    caught, total, survivors = score()
    with capsys.disabled():
        print(f"\nascend950 mutation score: {caught} of {total} ({100 * caught / total:.1f} %)")
    assert total >= 40
    assert caught >= 0.95 * total
    assert [survivor for survivor in survivors if survivor not in ACCEPTED] == []
