"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11; constants and test vectors of Random123).

A number is a pure function of (seed, sample index, position, purpose, token id), so a draw depends on nothing else in
the batch and is the same on every backend. Layout, which all backends share:

    key     = (low 32 bits of the seed, high 32 bits)
    counter = (token id // 4, position, purpose, sample index), each modulo 2^32
    word    = output number token id % 4

Invariant: 32-bit words live in int64 tensors with the upper half zero; products wrap modulo 2^64.
"""

from __future__ import annotations

from typing import Protocol

import torch

PURPOSES = {"target": 0, "accept": 1, "residual": 2, "draft": 3}
_MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random words per counter; all tensors int64 in [0, 2^32), broadcastable."""
    c0, c1, c2, c3 = counter
    steps = torch.arange(ROUNDS, device=c0.device)[:, *[None] * key[0].ndim]
    keys = [part + weyl * steps & _MASK for part, weyl in zip(key, WEYL, strict=True)]
    for k0, k1 in zip(*keys, strict=True):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32 & _MASK) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32 & _MASK) ^ c3 ^ k1, p0 & _MASK
    return c0, c1, c2, c3


def unit(words: torch.Tensor) -> torch.Tensor:
    """float32 in (0, 1) of random words: word * 2^-32 + 2^-33, at most 1 - 2^-24; every step is one rounding.

    Small values keep their relative precision, which is what rare events need.
    """
    return words.float().mul_(2.0**-32).add_(2.0**-33).clamp_(max=1 - 2.0**-24)


class Source(Protocol):
    """Where `sample` gets its noise: `Stream`, or the same numbers made in another way."""

    def __init__(
        self, seeds: torch.Tensor, sample_index: torch.Tensor | None, positions: torch.Tensor | None
    ) -> None: ...

    def noise(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        """Gumbel noise of token ids [n, c] at the rows' positions, float32."""
        ...

    def all_noise(self, vocab: int, purpose: str) -> torch.Tensor:
        """Gumbel noise of every token id, float32 [n, vocab]; not to be written to."""
        ...


class Stream:
    """The random numbers of a batch of rows, one key per row."""

    def __init__(
        self, seeds: torch.Tensor, sample_index: torch.Tensor | None, positions: torch.Tensor | None
    ) -> None:
        """seeds, sample_index (default 0), positions (default 0): [n] integers."""
        self.seeds = wide = seeds.long()
        self.key = (wide & _MASK, wide >> 32 & _MASK)
        self.sample = torch.zeros_like(wide) if sample_index is None else sample_index.long() & _MASK
        self.position = torch.zeros_like(wide) if positions is None else positions.long() & _MASK

    def shifted(self, steps: torch.Tensor | int) -> Stream:
        """The same rows `steps` positions later."""
        return Stream(self.seeds, self.sample, self.position + steps)

    def words(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        """Random words of token ids [n, c] at the rows' positions, int64 [n, c]."""
        four = torch.stack(self._blocks(tokens >> 2, purpose), -1)
        return four.gather(-1, (tokens & 3)[..., None]).squeeze(-1)

    def all_words(self, vocab: int, purpose: str | torch.Tensor) -> torch.Tensor:
        """Random words of every token id, int64 [n, vocab] (four share a block); purpose: a name, or numbers [n]."""
        blocks = torch.arange(-(-vocab // 4), device=self.position.device)[None]
        return torch.stack(self._blocks(blocks, purpose), -1).flatten(1)[:, :vocab]

    def noise(self, tokens: torch.Tensor, purpose: str) -> torch.Tensor:
        """Gumbel noise of token ids [n, c] at the rows' positions, float32."""
        return gumbel(self.words(tokens, purpose))

    def all_noise(self, vocab: int, purpose: str) -> torch.Tensor:
        """Gumbel noise of every token id, float32 [n, vocab]."""
        return gumbel(self.all_words(vocab, purpose))

    def _blocks(self, block: torch.Tensor, purpose: str | torch.Tensor) -> Words:
        number = torch.full_like(self.position, PURPOSES[purpose]) if isinstance(purpose, str) else purpose
        counter = (block, self.position[:, None], number[:, None], self.sample[:, None])
        return philox4x32(counter, (self.key[0][:, None], self.key[1][:, None]))


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise -ln(-ln(1 - v)), v = unit(words), float32; larger than 22 for one word in 2^32."""
    return unit(words).neg_().log1p_().neg_().log_().neg_()
