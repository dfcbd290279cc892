"""Numbers as storage bits of the formats that matrix instructions take: small integers (exact), random floats.

e4m3 and e5m2 follow OCP OFP8; values are built from sign, exponent and mantissa fields directly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_bitwise.stream import Stream

Array = np.ndarray[Any, Any]
FIELDS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 23),
    "f32": (8, 23),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "f64": (11, 52),
}
STORAGE = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "f64": 64,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "s32": 32,
}


def integer_bits(kind: str, value: Array) -> Array:
    """Integers of absolute value below 16 as bits of `kind`."""
    if kind in ("s8", "u8", "s4", "u4", "b1", "s32"):
        return value.astype(np.int64).astype(np.uint64) & np.uint64((1 << STORAGE[kind]) - 1)
    if kind == "f64":
        return value.astype(np.float64).view(np.uint64)
    e, m = FIELDS[kind]
    magnitude = np.abs(value).astype(np.uint64)
    top = np.where(magnitude > 0, np.floor(np.log2(np.maximum(magnitude, 1))), 0).astype(np.uint64)
    fraction = np.where(top <= m, magnitude << (np.uint64(m) - np.minimum(top, np.uint64(m))), 0)
    bias = np.uint64((1 << (e - 1)) - 1)
    bits = np.where(magnitude > 0, (bias + top) << np.uint64(m), 0) + (fraction & np.uint64((1 << m) - 1))
    return bits.astype(np.uint64) | (value < 0).astype(np.uint64) << np.uint64(e + m)


def integers(kind: str, count: int, rng: Stream) -> Array:
    """Random small integers as bits: sums of up to 256 products stay exact in f32, and in f16 for narrow ranges."""
    low, high = {"u8": (0, 256), "s8": (-128, 128), "u4": (0, 16), "s4": (-8, 8), "b1": (0, 2), "e5m2": (-4, 5)}.get(
        kind, (-5, 6)
    )
    return integer_bits(kind, rng.integers(low, high, count))


def floats(kind: str, count: int, rng: Stream, spread: int) -> Array:
    """Random values with exponents over `spread` binades around one; `spread` 0: any finite bits."""
    e, m = FIELDS[kind]
    raw = rng.words(count) & np.uint64((1 << (1 + e + m)) - 1)
    if spread:
        field = (1 << (e - 1)) - 1 + rng.integers(-(spread // 2), spread - spread // 2, count)
        field = np.clip(field, 0, (1 << e) - 2)
        keep = np.uint64((1 << m) - 1) | np.uint64(1 << (e + m))
        return (raw & keep) | field.astype(np.uint64) << np.uint64(m)
    infinite = (raw >> np.uint64(m)) & np.uint64((1 << e) - 1) == (1 << e) - 1
    return np.where(infinite, raw ^ np.uint64(1 << m), raw)


def pack(kind: str, bits: Array, word: int = 32) -> Array:
    """Elements packed into words, the first in the lowest bits."""
    width = STORAGE[kind]
    per = word // width
    bits = bits.reshape(-1, per).astype(np.uint64)
    shifts = (np.arange(per) * width).astype(np.uint64)
    return np.bitwise_or.reduce(bits << shifts, axis=1).astype({32: np.uint32, 64: np.uint64}[word])
