"""Random numbers of the sampling stream on a CPU, in numpy's vector code instead of torch's 64-bit one.

Same numbers as `deepinfer.ops.sampling.philox` (tests compare the bits), made in one of two ways.

Few counters cost what the array calls cost, so a round is four calls on flat arrays. With c = [c0 | c2], the words to
multiply (64-bit, upper halves zero), and o = [c1 | c3]:

    products = c * factors          [p0 | p1], then p0 once more behind: from p1 on they read [p1 | p0]
    c  <-  upper halves of [p1 | p0]  ^  o  ^  keys of the round      (32-bit views; the upper halves stay zero)
    o  <-  lower halves of [p1 | p0]

Many counters are bound by arithmetic (20 products and 40 exclusive ors per four words) and stay in 64-bit words, side
by side in memory. A word that is only combined by exclusive or keeps its upper half dirty; what is the same for all
tokens of a row stays one number per row; a chunk of counters stays in the caches for all ten rounds.

A small batch whose positions move on by one from call to call, as in decoding, gets the noise of several steps at once.
Invariants: the host is little-endian; noise that was handed out is never written again.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from deepinfer.ops.sampling.philox import MULTIPLIERS, PURPOSES, ROUNDS, WEYL

Array = np.ndarray[Any, np.dtype[Any]]
U32, U64 = np.uint32, np.uint64
FEW = 8192  # counters up to which fewer calls win over contiguous words
CHUNK = 1 << 15  # counters; shorter arrays spend the time on calls, longer ones leave the caches
AHEAD = 1024  # counters made in advance, all steps together; more pay for themselves at once
STEPS = 16  # positions made in advance at most
MASK, HALF = U64(0xFFFFFFFF), U64(32)
FACTORS = tuple(U64(factor) for factor in MULTIPLIERS)
WEYL_SUMS = (np.arange(ROUNDS, dtype=U64)[:, None] * np.array(WEYL, U64)).astype(U32)[:, :, None]


@functools.lru_cache(maxsize=16)
def _factors(size: int) -> Array:
    return np.repeat(np.array(MULTIPLIERS, U64), size)


def _round_keys(key: Array, n: int) -> Array:
    """Keys uint32 [2, rows] -> those of every round for n counters of each row, uint32 [ROUNDS, 2 * rows * n]."""
    made = np.empty((ROUNDS, 2, key.shape[1], n), U32)
    made[...] = (key + WEYL_SUMS)[..., None]
    return made.reshape(ROUNDS, -1)


def few_words(block: Array, columns: Array, key: Array, made: Array) -> None:
    """Write four words per counter to made, uint32 [rows, n, 4].

    block: token id // 4, uint32 [1 or rows, n]; columns: position, purpose, sample index, uint32 [3, rows]; key: uint32
    [2, rows].
    """
    rows, n, _ = made.shape
    size = rows * n
    wide, factors = np.zeros(2 * size, U64), _factors(size)
    multiplied = wide.view(U32)[0::2]
    pair = multiplied.reshape(2, rows, n)
    pair[0], pair[1] = block, columns[1][:, None]
    start = np.empty((2, rows, n), U32)
    start[0], start[1] = columns[0][:, None], columns[2][:, None]
    others, keys = start.reshape(-1), _round_keys(key, n)
    buffers = [np.empty(3 * size, U64) for _ in range(2)]
    parts = [(b[: 2 * size], b[2 * size :], b[:size], b[size:].view(U32)[1::2], b[size:].view(U32)[0::2])
             for b in buffers]
    for step in range(ROUNDS):
        products, behind, first, upper, lower = parts[step & 1]
        np.multiply(wide, factors, products)
        np.copyto(behind, first)
        np.bitwise_xor(upper, others, multiplied)
        np.bitwise_xor(multiplied, keys[step], multiplied)
        others = lower
    made[..., 0], made[..., 2] = pair
    made[..., 1], made[..., 3] = others.reshape(2, rows, n)


def many_words(block: Array, columns: Array, key: Array, made: Array) -> None:
    """What `few_words` does."""
    position, purpose, sample, low, high = (part.astype(U64)[:, None] for part in (*columns, *key))
    c0, c1, c2, c3 = block.astype(U64), position, purpose, sample
    for step in range(ROUNDS):
        k0, k1 = ((part + U64(weyl * step)) & MASK for part, weyl in zip((low, high), WEYL, strict=True))
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


def gumbel(words: Array) -> Array:
    """`deepinfer.ops.sampling.philox.gumbel` of contiguous words, the sign of the uniform number folded in."""
    made = words.astype(np.float32)
    np.multiply(made, np.float32(-(2.0**-32)), made)
    np.subtract(made, np.float32(2.0**-33), made)
    np.maximum(made, np.float32(2.0**-24 - 1), out=made)
    torch.from_numpy(made).log1p_().neg_().log_().neg_()  # torch's logarithms: other libraries' differ in last bits
    return made


class HostStream:
    """What `Stream` gives, for tensors in host memory."""

    def __init__(
        self, seeds: torch.Tensor, sample_index: torch.Tensor | None, positions: torch.Tensor | None
    ) -> None:
        given = seeds.numpy()
        self.seeds = given if given.dtype == np.int64 else given.astype(np.int64)
        self.sample, self.position = (
            np.zeros(len(given), U32) if part is None else part.numpy().astype(U32)
            for part in (sample_index, positions)
        )

    def words(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        """Random words of token ids [n, c] at the rows' positions, uint32 [n, c]."""
        ids = tokens.numpy()
        if not ids.size:
            return torch.empty(ids.shape, dtype=torch.uint32)
        vocab = int(ids.max()) + 1
        if vocab <= 4 * ids.shape[1]:  # tokens share a block by fours
            return torch.from_numpy(np.take_along_axis(self._all(vocab, purpose), ids, 1))
        four = self._blocks((ids >> 2).astype(U32), PURPOSES[purpose])
        return torch.from_numpy(np.take_along_axis(four, (ids & 3)[..., None], 2)[..., 0])

    def all_words(self, vocab: int, purpose: str | torch.Tensor) -> torch.Tensor:
        """Random words of every token id, uint32 [n, vocab]; purpose: a name, or numbers [n]."""
        return torch.from_numpy(self._all(vocab, purpose))

    def noise(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        """Gumbel noise of token ids [n, c], float32."""
        return torch.from_numpy(gumbel(self.words(tokens, purpose).numpy()))

    def all_noise(self, vocab: int, purpose: str) -> torch.Tensor:
        """Gumbel noise of every token id, float32 [n, vocab]; not to be written to."""
        return torch.from_numpy(_recent.noise(self, vocab, purpose))

    def fresh_noise(self, vocab: int, purpose: str, steps: int) -> Array:
        """Gumbel noise of `steps` positions from the rows' on, float32 [steps, n, vocab]."""
        if steps == 1:
            return gumbel(self._all(vocab, purpose))[None]
        every = object.__new__(HostStream)
        every.seeds, every.sample = np.tile(self.seeds, steps), np.tile(self.sample, steps)
        every.position = (self.position + np.arange(steps, dtype=U32)[:, None]).reshape(-1)
        return gumbel(every._all(vocab, purpose)).reshape(steps, len(self.position), vocab)

    def _all(self, vocab: int, purpose: str | torch.Tensor) -> Array:
        number = PURPOSES[purpose] if isinstance(purpose, str) else purpose.numpy().astype(U32)
        made = self._blocks(np.arange(-(-vocab // 4), dtype=U32)[None], number)
        return made.reshape(made.shape[0], 4 * made.shape[1])[:, :vocab]

    def _blocks(self, blocks: Array, purpose: int | Array) -> Array:
        """Words of token blocks [1 or rows, n], uint32 [rows, n, 4]."""
        rows, n = len(self.position), blocks.shape[1]
        columns = np.empty((3, rows), U32)
        columns[0], columns[1], columns[2] = self.position, purpose, self.sample
        key = np.empty((2, rows), U32)
        key[0], key[1] = self.seeds, self.seeds >> 32
        made = np.empty((rows, n, 4), U32)
        if rows * n <= FEW:
            few_words(blocks, columns, key, made)
            return made
        together = max(1, CHUNK // n)
        for row in range(0, rows, together):
            part = slice(row, row + together)
            block = blocks if blocks.shape[0] == 1 else blocks[part]
            for start in range(0, n, CHUNK):
                cut = slice(start, start + CHUNK)
                many_words(block[:, cut], columns[:, part], key[:, part], made[part, cut])
        return made


class _Recent:
    """The noise of the last small batch, and, once its positions moved on by one, of its next steps."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], Array, Array] | None = None  # replaced as a whole, so threads may share it

    def noise(self, stream: HostStream, vocab: int, purpose: str) -> Array:
        """float32 [n, vocab]."""
        position = stream.position
        counters = len(position) * -(-vocab // 4)
        if not 0 < counters <= AHEAD // 2:
            alone: Array = stream.fresh_noise(vocab, purpose, 1)[0]
            return alone
        tag = (vocab, purpose, stream.seeds.tobytes(), stream.sample.tobytes())
        kept, steps = self._kept, 1
        if kept is not None and kept[0] == tag:
            moved = (position - kept[1]).tolist()
            step = moved[0]
            if step <= len(kept[2]) and moved.count(step) == len(moved):
                if step < len(kept[2]):
                    found: Array = kept[2][step]
                    return found
                steps = min(AHEAD // counters, STEPS)
        made = stream.fresh_noise(vocab, purpose, steps)
        self._kept = (tag, position, made)
        first: Array = made[0]
        return first


_recent = _Recent()
