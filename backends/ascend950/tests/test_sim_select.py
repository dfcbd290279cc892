"""Squeezing, counting, masks as data: every call against numpy, as the documentation states it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from asc_harness import SimDriver, run
from test_sim_subset import probe, same

DATA = np.random.default_rng(4).integers(0, 256, 2048).astype(np.uint8)


def squeezed(x: np.ndarray, keep: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    out[: keep.sum()] = x[keep]
    return out


def counted(keep: np.ndarray, dtype: str) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(keep)[:-1]]).astype(np.int64).astype(dtype)


def test_squeeze_and_its_inverse() -> None:
    found = probe("subset_select", "squeezed", DATA, 7)
    b, h, f = DATA[:256], DATA[:256].view(np.uint16), DATA[:256].view(np.uint32)
    thirds8, fourths, thirds = np.arange(256) % 3 == 0, np.arange(128) % 4 == 0, np.arange(64) % 3 == 0
    same(found[0], squeezed(b, thirds8))
    same(found[1].view(np.uint16), squeezed(h, fourths))
    same(found[2].view(np.uint32), squeezed(f, thirds))
    assert not found[3].any()
    same(found[4].view(np.int8), counted(thirds8, "i1"))
    same(found[5].view(np.uint16), counted(fourths, "u2"))
    same(found[6].view(np.int32), counted(thirds, "i4"))


def test_histograms_add_to_what_is_there() -> None:
    found = probe("subset_select", "histograms", DATA, 4).view(np.uint16)
    counts = np.bincount(DATA[:128], minlength=256)
    same(found[0], 5 + counts[:128])
    same(found[1], 5 + counts[128:])
    same(found[2], 5 + np.cumsum(counts)[:128])
    same(found[3], 5 + np.cumsum(counts)[128:])


def bits(raw: np.ndarray) -> np.ndarray:
    return np.unpackbits(raw, bitorder="little").astype(bool)


def test_masks_as_data() -> None:
    found = bits(probe("subset_select", "mask_moves", DATA, 23, 32).ravel()).reshape(23, 256)
    a, b = bits(DATA[:32]), bits(DATA[32:64])
    row = 0
    for size in (1, 2, 4):
        lanes = np.stack([a.reshape(-1, size), b.reshape(-1, size)], 1)  # [lane][a, b][bits]
        half = len(lanes) // 2
        same(found[row], lanes[:half].ravel())
        same(found[row + 1], lanes[half:].ravel())
        row += 2
    for size in (1, 2, 4):
        both = np.concatenate([a, b]).reshape(-1, 2, size)
        same(found[row], both[:, 0].ravel())
        same(found[row + 1], both[:, 1].ravel())
        row += 2
    high = np.zeros(256, bool)
    high[128:] = a[::2]
    low, upper = np.roll(high, 128), np.zeros(256, bool)
    upper[::2] = a[128:]
    parts = [np.repeat(bits(DATA[16 * 3 : 16 * 4]), 2), np.repeat(bits(DATA[8 * 31 : 8 * 32]), 4)]
    wanted = [a, *parts, a & b, a | b, a ^ b, high, low, upper, b, a]
    for got, want in zip(found[row:], wanted, strict=True):
        same(got, want)


def test_calls_beside_them() -> None:
    r = np.random.default_rng(5)
    x, y = (r.normal(size=64).astype(np.float32) for _ in range(2))
    h, k = (r.normal(size=128).astype(np.float16) for _ in range(2))
    data = np.concatenate([x.view(np.uint8), y.view(np.uint8), h.view(np.uint8), k.view(np.uint8)])
    found = probe("subset_select", "beside", data, 15)
    low = np.arange(64) < 32
    e = np.exp(h.astype(np.float32) - k.astype(np.float32))
    halves = np.zeros((2, 128), np.float16)
    halves[0, ::2], halves[1, 1::2] = (x * np.float32(3)).astype(np.float16), np.where(low, x * np.float32(3), 0)
    xb, yb = x.view(np.uint32), y.view(np.uint32)
    exact = [np.where(low, x, y), np.abs(x - y), np.where(low, np.where(x > 0, x, x / 8), 0), np.where(x > 0, x, x * y)]
    for row, wanted in enumerate(exact):
        same(found[row].view(np.float32), wanted)
    for row, wanted in ((4, e[::2]), (5, np.where(low, e[1::2], 0)), (6, e[1::2])):
        np.testing.assert_allclose(found[row].view(np.float32), wanted, rtol=1e-6)
    same(found[7].view(np.float16), halves[0])
    same(found[8].view(np.float16), halves[1])
    same(found[9].view(np.uint32), xb & yb)
    same(found[10].view(np.uint32), np.where(low, xb ^ yb, 0))
    same(found[11].view(np.uint16), ~h.view(np.uint16))
    packed = np.concatenate([np.zeros(64, np.uint16), (xb & 0xFFFF).astype(np.uint16)])
    same(found[12].view(np.uint16), packed)
    same(found[13].view(np.uint32), h.view(np.uint16)[:64])
    same(found[14].view(np.uint16), packed)


def test_gathers() -> None:
    data, blocks = DATA.copy(), np.array([3, 0, 7, 7, 1, 31, 2, 5], np.uint32)
    data[1024:1056], index = (blocks * 32).view(np.uint8), np.random.default_rng(6).integers(0, 1024, 128)
    data[1280:1536] = index.astype(np.uint16).view(np.uint8)
    found = probe("subset_select", "gathered", data, 3)
    rows = data[:1024].reshape(32, 32)[blocks]
    same(found[0], rows.ravel())
    rows[4:] = 0
    same(found[1], rows.ravel())
    same(found[2].view(np.int16), data.view(np.int8)[index])


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("limit", [-1, 40, 99, 100])
def test_squeezing_stores_follow_each_other(sim: SimDriver, limit: int, policy: int) -> None:
    """All lanes, some, few, none; the count is there although the vector pipe may run behind the scalar unit."""
    sim.set_option("policy", policy)
    x = torch.randint(0, 100, (512,), generator=torch.Generator().manual_seed(limit + 1), dtype=torch.int32)
    out, status = torch.full((512,), -7, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    run("subset_select", "packed", [x], [out, status], [0, limit])
    kept = x[x >= limit]
    assert status.item() == 2 * 4 * len(kept)
    assert torch.equal(out[: len(kept)], kept)
    assert (out[len(kept) :] == -7).all()
