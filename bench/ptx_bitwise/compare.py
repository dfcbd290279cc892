"""Compares what both sides wrote and says it in rows: bits compared, equal or not, largest difference in ulp."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_bitwise.case import Case, output_key

FORMATS = {"f32": (np.uint32, 8, 23), "f64": (np.uint64, 11, 52), "f16": (np.uint16, 5, 10), "bf16": (np.uint16, 8, 7),
           "f32h": (np.uint32, 11, 20)}  # fmt: skip
LIMIT = 2  # ulp, of approximate functions

Arrays = list[np.ndarray[Any, Any]]


def ordered(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Floating-point bits as integers in the order of the values."""
    word, e, m = FORMATS[kind]
    bits = array.view(word).astype(object if kind == "f64" else np.int64)
    sign = 1 << (e + m)
    return np.where(bits >= sign, sign - bits, bits)


def ulps(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], kind: str) -> int:
    """Largest distance in representable values; NaN against a number, or infinity against a finite value, is 2^30."""
    if kind == "f64h":  # upper words of doubles
        got, want = ((x.view(np.uint64) >> np.uint64(32)).astype(np.uint32) for x in (got, want))
        kind = "f32h"
    word, e, m = FORMATS[kind]
    a, b = got.view(word), want.view(word)
    top = word(((1 << e) - 1) << m)
    special = [(x & top) == top for x in (a, b)]
    nan = [s & ((x & word((1 << m) - 1)) != 0) for s, x in zip(special, (a, b), strict=True)]
    wrong = (nan[0] != nan[1]) | ((special[0] != special[1]) & ~nan[0])
    if wrong.any():
        return 1 << 30
    distance = np.abs(ordered(got, kind) - ordered(want, kind))
    return int(np.max(np.where(nan[0], 0, distance))) if len(distance) else 0


def verdict(case: Case, hardware: Arrays, simulated: Arrays) -> dict[str, Any]:
    """The comparison part of an evidence row."""
    bits = sum(a.nbytes * 8 for a in hardware)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(hardware, simulated, strict=True))
    words = [(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(hardware, simulated, strict=True)]
    unequal = sum(int(np.count_nonzero(a != b)) for a, b in words)
    found = {
        "bits": bits,
        "equal": same,
        "unequal_bytes": unequal,
        "max_ulp": 0 if same else None,
        "output": output_key(hardware),
    }
    if case.rule.startswith("ulp:") and not same:
        found["max_ulp"] = max(ulps(s, h, case.rule[4:]) for s, h in zip(simulated, hardware, strict=True))
    found["ok"] = bool(same or (found["max_ulp"] is not None and found["max_ulp"] <= LIMIT))
    return found
