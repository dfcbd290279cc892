"""Quantisation written a second time, with numpy and ml_dtypes only: the judge of the bit-exact tests."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def fp8(x: Floats, block: tuple[int, int], ue8m0: bool, floor: float) -> tuple[Bytes, npt.NDArray[np.generic]]:
    """(payload bytes, scales) of a 2-D float32 matrix."""
    data = np.zeros(x.shape, np.uint8)
    grid = (-(-x.shape[0] // block[0]), -(-x.shape[1] // block[1]))
    scales = np.zeros(grid, np.uint8 if ue8m0 else np.float32)
    with np.errstate(all="ignore"):
        for i, j in np.ndindex(grid):
            at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            part = x[at]
            if not np.isfinite(part).all():
                data[at], scales[i, j] = 0x7F, 0xFF if ue8m0 else np.nan
                continue
            scale = np.float32(max(np.abs(part).max(), np.float32(floor))) / np.float32(448)
            if ue8m0:
                stored = np.asarray(round_up_power(float(scale)), np.float32)
                scales[i, j] = byte_of(float(stored))
                scale = np.float32(stored)
            else:
                scale = np.float32(1) if scale == 0 else scale
                scales[i, j] = scale
            ratio = np.clip((part / scale).astype(np.float32), -448, 448)
            data[at] = ratio.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return data, scales


def mxfp4(x: Floats, block: tuple[int, int]) -> tuple[Bytes, Bytes]:
    """(packed payload, exponent bytes) of a 2-D float32 matrix with an even number of columns."""
    codes = np.zeros(x.shape, np.uint8)
    grid = (-(-x.shape[0] // block[0]), -(-x.shape[1] // block[1]))
    scales = np.zeros(grid, np.uint8)
    with np.errstate(all="ignore"):
        for i, j in np.ndindex(grid):
            at = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            part = x[at]
            if not np.isfinite(part).all():
                scales[i, j] = 0xFF
                continue
            largest = np.float32(max(np.abs(part).max(), np.float32(6 * 2.0**-126)))
            scale = round_up_power(float(largest / np.float32(6)))
            scales[i, j] = byte_of(scale)
            ratio = np.clip((part / np.float32(scale)).astype(np.float32), -6, 6)
            codes[at] = ratio.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales


def round_up_power(scale: float) -> float:
    """The smallest power of two >= scale, within [2^-127, 2^127]."""
    power = -127
    while 2.0**power < scale and power < 127:
        power += 1
    return 2.0**power


def byte_of(power: float) -> int:
    """Biased exponent of a power of two, as ml_dtypes stores it."""
    return int(np.asarray(power, np.float64).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8))
