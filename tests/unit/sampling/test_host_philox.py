"""The cpu backend's forms of the random stream give the numbers of the portable one."""

from __future__ import annotations

import random

import pytest
import torch
from deepinfer_cpu.philox import AHEAD, CHUNK, FEW, STEPS, HostStream
from deepinfer_cpu.philox import gumbel as host_gumbel

from deepinfer.ops.sampling.philox import PURPOSES, Stream, gumbel

SEEDS = torch.tensor([0, -1, 2**40 + 7, -(2**63)])
ARGUMENTS = (SEEDS, torch.tensor([0, 3, 1, 2**31]), torch.tensor([0, 5, 2**33 + 1, 9]))


@pytest.mark.parametrize("vocab", [0, 1, 5, FEW, FEW + 3, 4 * CHUNK - 1, 4 * CHUNK + 6])
def test_all_words(vocab: int) -> None:
    host, portable = HostStream(*ARGUMENTS), Stream(*ARGUMENTS)
    for purpose in ("target", torch.tensor([3, 0, 1, 2])):
        found, wanted = host.all_words(vocab, purpose), portable.all_words(vocab, purpose)
        assert torch.equal(found.long(), wanted)
    assert torch.equal(host.all_noise(vocab, "draft"), portable.all_noise(vocab, "draft"))


@pytest.mark.parametrize(("count", "vocab"), [(0, 9), (7, 40000), (300, 1000), (FEW // 4 + 1, 40000), (FEW, 9)])
def test_words_of_some_tokens(count: int, vocab: int) -> None:
    """Made one by one, or all made and some picked."""
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(0, vocab, (len(SEEDS), count), generator=generator)
    host, portable = HostStream(*ARGUMENTS), Stream(*ARGUMENTS)
    assert torch.equal(host.words(tokens, "draft").long(), portable.words(tokens, "draft"))
    assert torch.equal(host.noise(tokens, "draft"), portable.noise(tokens, "draft"))


def test_no_rows() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert HostStream(empty, empty, empty).all_words(17, "target").shape == (0, 17)
    assert HostStream(empty, None, None).all_noise(17, "target").shape == (0, 17)


def test_noise_of_every_word() -> None:
    """The extreme words, and both roundings to 1 - 2^-24."""
    words = torch.tensor([0, 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 127, 2**32 - 1])
    assert torch.equal(torch.from_numpy(host_gumbel(words.to(torch.uint32).numpy())), gumbel(words))


@pytest.mark.parametrize(("rows", "vocab"), [(1, 16), (3, 250), (2, 4 * AHEAD)])
def test_steps_made_in_advance(rows: int, vocab: int) -> None:
    """Positions that move on, stand still, jump, wrap and part; other seeds, samples and purposes between."""
    rng = random.Random(rows)
    seeds, samples = torch.arange(rows) + 5, torch.arange(rows)
    positions, purpose = torch.full((rows,), 2**32 - 3), "target"
    for turn in range(6 * STEPS):
        positions = positions + (1 if rng.random() < 0.85 else rng.choice((0, 2, -1, STEPS)))
        if rng.random() < 0.08:
            seeds, samples = seeds + rng.randrange(2), samples + rng.randrange(2)
            purpose = rng.choice(sorted(PURPOSES))
        if rng.random() < 0.05:
            positions = positions + torch.arange(rows)
        found = HostStream(seeds, samples, positions).all_noise(vocab, purpose)
        assert torch.equal(found, Stream(seeds, samples, positions).all_noise(vocab, purpose)), turn
