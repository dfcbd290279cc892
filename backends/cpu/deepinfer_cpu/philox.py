"""Random words of the sampling stream on a CPU, in numpy's 64-bit vector code instead of torch's.

Same numbers as `deepinfer.ops.sampling.philox` (a test compares them). A word that is only combined by exclusive or
keeps its upper half dirty: of the four words of a round, the two products are taken as they are, and only the two words
that are multiplied next are masked. What is the same for all tokens of a row stays one number per row, and a chunk of
counters stays in the caches for all ten rounds. Bound by arithmetic: 20 products and 40 exclusive ors per four words.
Invariant: the host is little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from deepinfer.ops.sampling.philox import MULTIPLIERS, PURPOSES, ROUNDS, WEYL, Stream

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK = 1 << 15  # counters; shorter arrays spend the time on calls, longer ones leave the caches
FEW = 4096  # tokens of a row up to which their words are made one by one
MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FACTORS = tuple(np.uint64(factor) for factor in MULTIPLIERS)


def four_words(counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array], made: Array) -> None:
    """Write four words per counter to made, uint32 [rows, n, 4].

    counter: words below 2^32 in uint64 that broadcast to [rows, n]; key: [rows, 1].
    """
    c0, c1, c2, c3 = counter
    for step in range(ROUNDS):
        k0, k1 = ((part + np.uint64(weyl * step)) & MASK for part, weyl in zip(key, WEYL, strict=True))
        p0, p1 = c0 * FACTORS[0], c2 * FACTORS[1]
        c0, c1, c2, c3 = _mixed(p1, c1, k0), p1, _mixed(p0, c3, k1), p0
    for column, word in enumerate((c0, c1, c2, c3)):
        made[..., column] = word  # the lower half


def _mixed(product: Array, word: Array, key: Array) -> Array:
    """(upper half of product) ^ word ^ key, 32 bits."""
    high = (product >> HALF) ^ word
    high ^= key
    high &= MASK
    return high


class HostStream(Stream):
    """`Stream` for tensors in host memory; words come as uint32 tensors."""

    def words(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        if tokens.shape[1] <= FEW:  # too few to pay for making the words between them
            return super().words(tokens, purpose)
        # Tokens share a block by fours, so many of them need less work together.
        every = self.all_words(int(tokens.max()) + 1, purpose).view(torch.int32)
        return every.gather(1, tokens).view(torch.uint32)

    def all_words(self, vocab: int, purpose: str | torch.Tensor) -> torch.Tensor:
        number = torch.full_like(self.position, PURPOSES[purpose]) if isinstance(purpose, str) else purpose
        columns = [_column(words) for words in (self.position, number, self.sample, *self.key)]
        blocks = np.arange(-(-vocab // 4), dtype=np.uint64)[None]
        made = np.empty((len(self.position), blocks.shape[1], 4), np.uint32)
        together = max(1, CHUNK // max(blocks.shape[1], 1))
        for row in range(0, len(made), together):
            rows = slice(row, row + together)
            position, purposes, sample, low, high = (column[rows] for column in columns)
            for start in range(0, blocks.shape[1], CHUNK):
                part = slice(start, start + CHUNK)
                four_words((blocks[:, part], position, purposes, sample), (low, high), made[rows, part])
        return torch.from_numpy(made.reshape(len(made), 4 * blocks.shape[1]))[:, :vocab]


def _column(words: torch.Tensor) -> Array:
    """Words [n] as uint64 [n, 1]."""
    column: Array = words.numpy().astype(np.uint64)[:, None]
    return column
