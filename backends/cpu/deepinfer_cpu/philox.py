"""Random words of the sampling stream on a CPU, 32 bits wide where the portable tier needs 64.

Same numbers as `deepinfer.ops.sampling.philox` (a test compares them): a product of two 32-bit words is one 64-bit
product whose halves are read in place, and a chunk of counters stays in the second-level cache for all ten rounds.
Bound by arithmetic: 20 products and 40 exclusive ors per four words. Invariant: the host is little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepinfer.ops.sampling.philox import MULTIPLIERS, PURPOSES, ROUNDS, WEYL, Stream

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK = 8192  # counters; the six arrays of a round take about 400 KiB
MASK = 0xFFFFFFFF
FACTORS = tuple(np.uint64(factor) for factor in MULTIPLIERS)


def four_words(counter: tuple[Array, int, int, int], key: tuple[int, int]) -> Array:
    """Four words per counter, uint32 [n, 4]; the first counter word is an array [n], the others belong to the row."""
    made = np.empty((len(counter[0]), 4), np.uint32)
    for start in range(0, len(made), CHUNK):
        part = made[start : start + CHUNK]
        words = [counter[0][start : start + CHUNK], *(np.full(len(part), word, np.uint32) for word in counter[1:])]
        for step in range(ROUNDS):
            k0, k1 = (np.uint32((part_ + weyl * step) & MASK) for part_, weyl in zip(key, WEYL, strict=True))
            low0, high0 = _halves(words[0], FACTORS[0])
            low1, high1 = _halves(words[2], FACTORS[1])
            words = [high1 ^ words[1] ^ k0, low1, high0 ^ words[3] ^ k1, low0]
        for column, word in enumerate(words):
            part[:, column] = word
    return made


def _halves(words: Array, factor: np.uint64) -> tuple[Array, Array]:
    """Low and high 32 bits of words * factor."""
    halves = np.multiply(words, factor, dtype=np.uint64).view(np.uint32)
    return halves[0::2], halves[1::2]


class HostStream(Stream):
    """`Stream` for tensors in host memory; words come as uint32 tensors."""

    def words(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        if tokens.shape[1] <= CHUNK // 2:  # too few to pay for a loop over rows
            return super().words(tokens, purpose)
        # Tokens share a block by fours, so many of them need less work together.
        every = self.all_words(int(tokens.max()) + 1, purpose).view(torch.int32)
        return every.gather(1, tokens).view(torch.uint32)

    def all_words(self, vocab: int, purpose: str | torch.Tensor) -> torch.Tensor:
        blocks = np.arange(-(-vocab // 4), dtype=np.uint32)
        made = np.empty((len(self.position), 4 * len(blocks)), np.uint32)
        for row in range(len(made)):
            made[row] = four_words((blocks, *self._rest(row, purpose)), self._key(row)).reshape(-1)
        return torch.from_numpy(made)[:, :vocab]

    def _rest(self, row: int, purpose: str | torch.Tensor) -> tuple[int, int, int]:
        number = PURPOSES[purpose] if isinstance(purpose, str) else int(purpose[row])
        return int(self.position[row]), number, int(self.sample[row])

    def _key(self, row: int) -> tuple[int, int]:
        return int(self.key[0][row]), int(self.key[1][row])
