"""Checks of plain values that users pass to the engine; each raises InvalidArgument with the nearest legal value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deepinfer.errors import invalid

FLOAT32_MAX = 3.4028234663852886e38


def integer(name: str, value: object, low: int, high: int) -> int:
    """`value` must be an int (no bool, no float) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, value, f"must be an integer in [{low}, {high}]")
    if not low <= value <= high:
        raise invalid(name, value, f"must be in [{low}, {high}]", nearest=min(max(value, low), high))
    return value


def number(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> float:
    """`value` must be a number in [low, high], or in (low, high] with `low_open`, that fits float32."""
    bounds = f"{'(' if low_open else '['}{low}, {high}{']' if math.isfinite(high) else ')'}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise invalid(name, value, f"must be a finite number in {bounds} that fits float32")
    if not (low < value if low_open else low <= value) or value > high:
        nearest = None if low_open and value <= low else min(max(value, low), high)
        raise invalid(name, value, f"must be in {bounds}", nearest=nearest)
    return float(value)


def boolean(name: str, value: object) -> bool:
    """`value` must be True or False."""
    if not isinstance(value, bool):
        raise invalid(name, value, "must be True or False")
    return value


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """`value` must be one of the texts in `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise invalid(name, value, f"must be one of {', '.join(allowed)}", nearest=repr(allowed[0]))
    return value
