"""The simulator gives the bits that an H200 gave: all cases of bench/evidence/ptx_bitwise.jsonl, without a GPU."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pytest
import simlib

sys.path.insert(0, str(simlib.ROOT / "bench"))

from ptx_bitwise import evidence
from ptx_bitwise.catalogue import all_cases
from ptx_bitwise.sides import Side, open_side

FAMILIES = sorted({c.family for c in all_cases().values()} - {"survey"})


@cache
def side() -> Side:
    return open_side("simulated", str(simlib.build()))


@cache
def kept() -> dict[str, dict[str, Any]]:
    return evidence.read_rows()


@cache
def approximate() -> dict[str, Any]:
    return evidence.approximate_outputs()


@pytest.mark.parametrize("family", FAMILIES)
def test_hardware_bits(family: str) -> None:
    problems = {}
    for name, case in all_cases().items():
        row = kept().get(name)
        if case.family != family or row is None or not row["ok"]:
            continue
        why = evidence.problem(case, row, side().run(case), approximate().get(name))
        if why:
            problems[name] = why
    assert not problems


def test_what_was_proved() -> None:
    """At least 150 instruction-level cases and 10 whole kernels agree; what does not is listed with its rule."""
    rows = kept().values()
    agree = [r for r in rows if r["ok"]]
    kernels = [r for r in agree if r["case"].startswith("kernel/")]
    assert len(agree) - len(kernels) >= 150
    assert len(kernels) >= 10
    assert [r["case"] for r in rows if not r["equal"]] == []
    assert all(r["driver_kind"] == "hardware" and r["bits"] > 0 for r in rows)
