"""Mutants are caught: a few on every run, all of them in the long tier (see asc_mutants.py)."""

from __future__ import annotations

import pytest
from asc_mutants import NUMBERS, judge
from deepinfer_ascend950.device import open_simulated
from deepinfer_ascend950.drivers.sim import SimDriver

ALL = [(source, number) for source, numbers in NUMBERS.items() for number in numbers]
QUICK = [("gemm_plain", 1), ("gemm_plain", 7), ("ep_reduce", 50)]


@pytest.mark.parametrize(("source", "number"), QUICK)
def test_a_few(sim: SimDriver, source: str, number: int) -> None:
    assert not judge(open_simulated(0), source, 0)[0]
    assert judge(open_simulated(0), source, number)[0]


@pytest.mark.long
@pytest.mark.parametrize(("source", "number"), ALL)
def test_all(sim: SimDriver, source: str, number: int) -> None:
    sim.set_option("deadline_s", 10)
    assert judge(open_simulated(0), source, number)[0]
