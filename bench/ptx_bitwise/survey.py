"""Approximate functions at regular points: what the simulator's tables are fitted to.

The points cover the reduced range of each function evenly, so that the pieces of the hardware's own tables show.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise.case import Buffer, Case, poisoned
from ptx_bitwise.lanes import THREADS, kernel

POINTS = 32768


def mantissas(exponent: int) -> np.ndarray:
    """POINTS evenly spaced values of one binade, 2^exponent first."""
    step = (1 << 23) // POINTS
    return (np.uint32(127 + exponent) << np.uint32(23)) + np.arange(POINTS, dtype=np.uint32) * np.uint32(step)


def fractions(scale: float) -> np.ndarray:
    """POINTS evenly spaced values of [0, scale)."""
    return (np.arange(POINTS) * (scale / POINTS)).astype(np.float32).view(np.uint32)


def binades(low: int, high: int) -> np.ndarray:
    """Evenly spaced values of every binade from 2^low to 2^high."""
    each = POINTS // (high - low)
    step = np.uint32((1 << 23) // each)
    parts = [(np.uint32(127 + e) << np.uint32(23)) + np.arange(each, dtype=np.uint32) * step for e in range(low, high)]
    return np.resize(np.concatenate(parts), POINTS)


SURVEYS = {
    "tanh.approx.f32": [binades(-12, 4)],
    "lg2.approx.ftz.f32": [mantissas(0), mantissas(-1)],
    "sin.approx.ftz.f32": [fractions(2 * np.pi), binades(-16, 0)],
    "cos.approx.ftz.f32": [fractions(2 * np.pi), binades(-16, 0)],
    "ex2.approx.ftz.f32": [fractions(1.0)],
    "rcp.approx.ftz.f32": [mantissas(0)],
    "rsqrt.approx.ftz.f32": [mantissas(0), mantissas(1)],
    "sqrt.approx.ftz.f32": [mantissas(0), mantissas(1)],
}


def cases() -> Iterator[Case]:
    """One case per function and range."""
    for form, ranges in SURVEYS.items():
        for index, points in enumerate(ranges):
            args = (Buffer(points), Buffer(poisoned(POINTS, np.uint32), out=True))
            yield Case(
                f"survey/{form} range {index}",
                form,
                kernel(f"{form} %d, %a;", ["f32"], "f32"),
                args,
                (POINTS // THREADS, 1, 1),
                (THREADS, 1, 1),
                rule="report",
                family="survey",
            )
