"""Runs the GEMM fixtures with integer-valued inputs, whose sums are exact in every order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import simlib

KERNELS = Path(__file__).parent / "kernels"


def bf16(shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers as bf16 bits and as float64."""
    v = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
    bits = simlib.aligned(shape, np.uint16)
    bits[:] = v.view(np.uint32) >> 16
    return bits, v.astype(np.float64)


def sm90(text: str, m: int = 64, n: int = 128, k: int = 512, seed: int = 0) -> bool:
    """Runs the sm_90 kernel; True if the result is exact."""
    module = simlib.Module(text, simlib.SM90)
    (a, fa), (b, fb) = bf16((m, k), seed), bf16((n, k), seed + 1)
    d = np.zeros((m, n), np.float32)
    maps = (
        simlib.tensor_map(a, "bf16", [k, m], [2 * k], [64, 64], "128"),
        simlib.tensor_map(b, "bf16", [k, n], [2 * k], [64, 128], "128"),
    )
    module.launch(
        "gemm",
        (m // 64, n // 128),
        160,
        *maps,
        d,
        n,
        k,
        simlib.Span(a, False),
        simlib.Span(b, False),
        smem=3 * (64 + 128) * 64 * 2,
    )
    return bool(np.array_equal(d, fa @ fb.T))


def sm100(
    text: str, ctas: int, m: int | None = None, n: int = 128, k: int = 512, seed: int = 0, tiles: int = 1
) -> bool:
    """Runs the sm_100 kernel with 1 or 2 CTAs per tile, `tiles` column tiles in turn; True if the result is exact."""
    n *= tiles
    m = m or 128 * ctas
    module = simlib.Module(text, simlib.SM100)
    (a, fa), (b, fb) = bf16((m, k), seed), bf16((n, k), seed + 1)
    d = np.zeros((m, n), np.float32)
    maps = (
        simlib.tensor_map(a, "bf16", [k, m], [2 * k], [64, 128], "128"),
        simlib.tensor_map(b, "bf16", [k, n], [2 * k], [64, 128 // ctas], "128"),
    )
    smem = 3 * (128 + 128 // ctas) * 64 * 2
    module.launch(
        f"gemm_{ctas}cta",
        (m // 128, n // 128 // tiles),
        192,
        *maps,
        d,
        n,
        k,
        tiles,
        simlib.Span(a, False),
        simlib.Span(b, False),
        smem=smem,
    )
    return bool(np.array_equal(d, fa @ fb.T))


def text(name: str) -> str:
    return (KERNELS / f"{name}.ptx").read_text()


def outcome(run: Any, **options: Any) -> str:
    """'' if the run is clean and right, else what was wrong."""
    simlib.configure(**options)
    try:
        return "" if run() else "wrong result"
    except simlib.SimError as e:
        return str(e).split("\n")[0]
