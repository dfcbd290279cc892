"""The cpu backend's 32-bit form of the random stream gives the numbers of the portable one."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cpu.philox import CHUNK, FEW, HostStream

from deepinfer.ops.sampling.philox import Stream, gumbel

SEEDS = torch.tensor([0, -1, 2**40 + 7, -(2**63)])
ARGUMENTS = (SEEDS, torch.tensor([0, 3, 1, 2**31]), torch.tensor([0, 5, 2**33 + 1, 9]))


@pytest.mark.parametrize("vocab", [1, 5, 4 * CHUNK - 1, 4 * CHUNK + 6])
def test_all_words(vocab: int) -> None:
    host, portable = HostStream(*ARGUMENTS), Stream(*ARGUMENTS)
    for purpose in ("target", torch.tensor([3, 0, 1, 2])):
        found, wanted = host.all_words(vocab, purpose), portable.all_words(vocab, purpose)
        assert torch.equal(found.long(), wanted)
        assert torch.equal(gumbel(found), gumbel(wanted))


@pytest.mark.parametrize("count", [0, 7, FEW, FEW + 1])
def test_words_of_some_tokens(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(0, 10 * FEW, (len(SEEDS), count), generator=generator)
    host, portable = HostStream(*ARGUMENTS), Stream(*ARGUMENTS)
    assert torch.equal(host.words(tokens, "draft").long(), portable.words(tokens, "draft"))


def test_no_rows() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert HostStream(empty, empty, empty).all_words(17, "target").shape == (0, 17)
