"""All cases by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ptx_bitwise import (
    atomics,
    barriers,
    clusters,
    kernels,
    matrix,
    scalar,
    sparse,
    survey,
    tensormaps,
    tma,
    wgmma,
    wmma,
)  # fmt: skip
from ptx_bitwise.case import Case


@cache
def all_cases() -> dict[str, Case]:
    """Every case; a form that several tables list appears once."""
    found: dict[str, Case] = {}
    for family in (scalar, atomics, matrix, wmma, wgmma, sparse, barriers, tma, tensormaps, clusters, kernels, survey):
        for case in family.cases():
            found.setdefault(case.name, case)
    return found


def choose(families: Iterable[str] = (), contains: str = "") -> list[str]:
    """Names of the cases of these families (all when empty) that contain a text."""
    wanted = set(families)
    return [n for n, c in all_cases().items() if (not wanted or c.family in wanted) and contains in n]
