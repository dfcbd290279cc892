"""Conversions of halves and integers, whole numbers, and what scalar units do to words, against numpy."""

from __future__ import annotations

import asc_formats as formats
import numpy as np
import pytest
import torch
from asc_harness import SimDriver, run
from test_sim_subset import MODES, probe, same

HALVES = np.concatenate(
    [
        np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, 128, 255.5, 257, -129, -300, 1000, 65504, -65504]),
        np.array([np.inf, -np.inf, np.nan, 0.0]),
        np.random.default_rng(1).normal(size=108) * 60,
    ]
).astype(np.float16)


def integers(x: np.ndarray, mode: str, width: int) -> np.ndarray:
    """As the device has them: NaN is 0."""
    return np.where(np.isnan(x), 0, formats.to_integer(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf), mode, width))


def test_halves_to_bytes() -> None:
    found = probe("subset_round", "bytes", HALVES, 40)
    row = 0
    for mode in MODES:
        whole = integers(HALVES.astype(np.float32), mode, 32).astype(np.int64)
        for low, high, dtype in ((-128, 127, np.int8), (0, 255, np.uint8)):
            limits = np.clip(whole, low, high)
            wrapped = np.where(np.isfinite(HALVES), whole & 255, limits & 255)
            for values in (wrapped, limits & 255):
                for part in (0, 1):
                    wanted = np.zeros(256, np.uint8)
                    wanted[part::2] = values
                    same(found[row].view(dtype), wanted.view(dtype))
                    row += 1


def test_halves_to_words() -> None:
    found = probe("subset_round", "words", HALVES, 30)
    row, raw = 0, HALVES.view(np.uint16)
    with np.errstate(invalid="ignore"):
        brain = (raw.astype(np.uint32) << 16).view(np.float32)
    for mode in MODES:
        for values in (HALVES.astype(np.float32), brain):
            for part in (0, 1):
                same(found[row].view(np.int32), integers(values[part::2], mode, 32))
                row += 1
        same(found[row].view(np.int16), integers(HALVES.astype(np.float32), mode, 16))
        same(found[row + 1].view(np.uint16), formats.encode("f16", raw.view(np.int16).astype(np.float32), mode, False))
        row += 2


def test_whole_numbers_and_merges() -> None:
    x = np.concatenate([[0.5, 1.5, -0.5, -2.5, np.inf, 2**24 + 1], np.random.default_rng(2).normal(size=58) * 9])
    x = x.astype(np.float32)
    data = np.concatenate([HALVES.view(np.uint8), x.view(np.uint8)])
    found = probe("subset_round", "whole", data, 14)
    same(found[0].view(np.float16), np.rint(HALVES))
    away = np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)
    for row, wanted in enumerate((np.rint(x), away, np.floor(x), np.ceil(x), np.trunc(x)), 1):
        same(found[row].view(np.float32), wanted)
    for row, values in ((6, data[:256].view(np.int8)), (8, data[:256])):
        for part in (0, 1):
            same(found[row + part].view(np.float16), values[part::2].astype(np.float16))
    merged = np.where(np.arange(64) % 3 == 0, x[0], x)
    same(found[10].view(np.float32), merged)
    merged[:2] = x[-1]
    same(found[11].view(np.float32), merged)
    tail = found[12:].ravel().view(np.float32)
    same(tail[1:65], x)
    same(tail[65:70], x[:5])


@pytest.mark.parametrize("policy", [0, 2])
@pytest.mark.parametrize("value", [0, 1, -1, 0x00F0_0000_0000_0F00])
def test_scalars(sim: SimDriver, value: int, policy: int) -> None:
    sim.set_option("policy", policy)
    found, words = torch.zeros(8, dtype=torch.int64), torch.zeros(16, dtype=torch.int32)
    words[6], words[9] = -1, 10
    run("subset_round", "scalars", [], [found, words], [value], 6)
    bits = format(value & (2**64 - 1), "064b")[::-1]
    wanted = [bits.count("1"), bits.count("0"), len(bits) - len(bits.rstrip("0")), bits.find("1"), bits.find("0")]
    assert found[:5].tolist() == wanted
    assert found[5].item() & (2**64 - 1) == value & (2**64 - 1) | 1 << 63
    assert found[6].item() == value & ~1
    assert found[7].item() == 64
    assert words[1:2].view(torch.float32).item() == 3.0
    assert words[[0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]].tolist() == [18, 5, -5, 63, 63, -64, 0, 0, 4, 7, 9, 1]
