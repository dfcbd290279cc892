"""Triton's PTX for both targets: right results, no findings, every schedule."""

from __future__ import annotations

import ctypes as C

import gemms
import numpy as np
import pytest
import simlib

DEVICES = {90: simlib.SM90, 100: simlib.SM100}
SCRATCH = C.c_uint64(0)  # Triton appends two scratch pointers to every kernel


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_matmul(target: int, schedule: str) -> None:
    """wgmma-free mma.sync on sm_90, tcgen05 on sm_100, both through st.shared."""
    simlib.configure(schedule=schedule, seed=3)
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (128, 96)).astype(np.float16), rng.integers(-3, 4, (96, 128)).astype(np.float16)
    c = np.zeros((128, 128), np.float32)
    module = simlib.Module(gemms.text(f"triton_matmul_sm{target}"), DEVICES[target])
    module.launch(
        "matmul", (2, 2), 128, simlib.ReadOnly(a), simlib.ReadOnly(b), c, 128, 96, SCRATCH, SCRATCH, smem=32768
    )
    assert np.array_equal(c, a.astype(np.float64) @ b)


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_rms_norm(target: int, schedule: str) -> None:
    simlib.configure(schedule=schedule, seed=4)
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype(np.float32).view(np.uint32) >> 16 for s in ((4, 1000), (1000,)))
    y = np.zeros((4, 1000), np.uint16)
    module = simlib.Module(gemms.text(f"triton_rms_norm_sm{target}"), DEVICES[target])
    module.launch(
        "rms_norm",
        4,
        128,
        *(simlib.ReadOnly(v.astype(np.uint16)) for v in (x, w)),
        y,
        1000,
        1e-6,
        SCRATCH,
        SCRATCH,
        smem=1024,
    )
    wide = [(v.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for v in (x, w)]
    want = wide[0] / np.sqrt((wide[0] ** 2).mean(1, keepdims=True) + 1e-6) * wide[1]
    got = (y.astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.abs(got - want) <= np.abs(want) * 2.0**-8 + 1e-6)
