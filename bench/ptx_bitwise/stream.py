"""Random numbers that no library version changes: SplitMix64 over a counter (Steele, Lea, Flood 2014).

Only what the cases need, with numpy's names. Evidence stays comparable for as long as this file does not change.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Stream:
    """A sequence of 64-bit words, fixed by its seed (a number or a text)."""

    def __init__(self, seed: int | str) -> None:
        self._state = np.uint64(zlib.crc32(seed.encode()) if isinstance(seed, str) else seed)
        self._used = 0

    def words(self, count: int) -> Array:
        """The next `count` words."""
        with np.errstate(over="ignore"):
            index = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64)
            z = (self._state + np.uint64(0x632BE59BD9B4E019)) * np.uint64(0x9E3779B97F4A7C15)
            z = z + index * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        self._used += count
        return z ^ (z >> np.uint64(31))

    def integers(self, low: int, high: int, shape: Any) -> Array:
        """int64 in [low, high), high - low below 2^32."""
        count = int(np.prod(shape))
        scaled = (self.words(count) >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)
        return (scaled.astype(np.int64) + low).reshape(shape)

    def random(self, count: int) -> Array:
        """float64 in [0, 1)."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int) -> Array:
        """0 .. count - 1 in random order."""
        return np.argsort(self.words(count), kind="stable")
