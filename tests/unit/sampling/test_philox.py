"""Philox4x32-10 against the published vectors of Random123, and the uniform and Gumbel numbers made of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.sampling import contract
from deepinfer.ops.sampling.philox import PURPOSES, Stream, gumbel, philox4x32, unit

VECTORS = [  # Random123, kat_vectors: philox4x32 10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), VECTORS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([value]) for value in counter)
    k0, k1 = (torch.tensor([value]) for value in key)
    assert tuple(word.item() for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == wanted


def test_reference_known_answer() -> None:
    """The plain-integer reference fixes purpose as counter word 2 and the sample index as word 3."""
    counter, key, wanted = VECTORS[2]
    seed = key[0] | key[1] << 32
    assert contract.exact_words(seed, counter[3], counter[1], counter[2], counter[0]) == list(wanted)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(-(2**40), 2**40),
    st.sampled_from(sorted(PURPOSES)), st.integers(0, 2**31 - 1),
)
def test_stream_equals_the_reference(seed: int, sample: int, position: int, purpose: str, token: int) -> None:
    stream = Stream(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([position]))
    word = stream.words(torch.tensor([[token]]), purpose).item()
    assert word == contract.exact_words(seed, sample, position, PURPOSES[purpose], token // 4)[token % 4]


@pytest.mark.parametrize("vocab", [1, 3, 4, 5, 260])
def test_all_words_are_the_words_of_each_token(vocab: int) -> None:
    stream = Stream(torch.tensor([5, -9]), torch.tensor([0, 3]), torch.tensor([7, 8]))
    tokens = torch.arange(vocab).repeat(2, 1)
    assert torch.equal(stream.all_words(vocab, "target"), stream.words(tokens, "target"))
    by_number = stream.all_words(vocab, torch.tensor([PURPOSES["draft"], PURPOSES["residual"]]))
    assert torch.equal(by_number[0], stream.words(tokens, "draft")[0])
    assert torch.equal(by_number[1], stream.words(tokens, "residual")[1])


@pytest.mark.parametrize("change", ["seed", "high seed", "sample", "position", "purpose"])
def test_every_part_of_the_name_changes_the_numbers(change: str) -> None:
    base = Stream(torch.tensor([5]), torch.tensor([1]), torch.tensor([7])).all_words(64, "target")
    seed = {"seed": 6, "high seed": 5 + (1 << 40)}.get(change, 5)
    sample, position = 1 + (change == "sample"), 7 + (change == "position")
    other = Stream(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([position]))
    words = other.all_words(64, "draft" if change == "purpose" else "target")
    assert (base != words).float().mean() > 0.9


def test_unit_stays_inside_the_open_interval() -> None:
    words = torch.tensor([0, 1, 2**31, 2**32 - 129, 2**32 - 1])
    made = unit(words)
    assert made[0].item() == 2.0**-33
    assert made[-1].item() == 1 - 2.0**-24
    assert ((made > 0) & (made < 1)).all()
    assert gumbel(words).isfinite().all()
    for word in words.tolist():
        assert unit(torch.tensor([word])).item() == contract.exact_unit(word)


def test_gumbel_moments() -> None:
    noise = gumbel(Stream(torch.tensor([123]), None, None).all_words(1 << 18, "target")).double()
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=5 * math.pi / math.sqrt(6) / 512)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)
