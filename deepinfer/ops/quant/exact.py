"""The quantisers' reference arithmetic, element by element and independent of any cast instruction.

A small float format is a sorted list of its non-negative values; rounding picks the nearest, ties go to the even code
(the code is the position in the list). Division is done in float64 and rounded to float32, which is the correctly
rounded float32 quotient (53 >= 2 * 24 + 2 bits).
"""

from __future__ import annotations

import math

import torch

from deepinfer.ops.quant.blocks import grid
from deepinfer.ops.quant.codec import E2M1_VALUES


def e4m3_values() -> list[float]:
    """Non-negative values of e4m3fn in code order 0x00..0x7E: 8 subnormals of step 2^-9, then 1.xxx * 2^(e-7)."""
    return [m * 2.0**-9 for m in range(8)] + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]


E4M3_GRID = torch.tensor(e4m3_values(), dtype=torch.float64)
E2M1_GRID = torch.tensor(E2M1_VALUES, dtype=torch.float64)


def nearest_code(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Code (int64, sign not included) of the value nearest to |x|, ties to the even code, saturating. NaN gives 0."""
    magnitude = x.double().abs().nan_to_num(nan=0.0, posinf=values[-1].item()).contiguous()
    middle = (values[1:] + values[:-1]) / 2
    low = torch.searchsorted(middle, magnitude, right=False)  # first midpoint >= |x|
    tie = (low < len(middle)) & (middle[low.clamp(max=len(middle) - 1)] == magnitude)
    return low + (tie & (low % 2 == 1))


def divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The float32 quotient, as float64."""
    return (x.double() / y.double()).float().double()


def block_amax(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Largest magnitude per block by plain loops, float64; NaN where the block holds NaN or infinity."""
    found = torch.zeros(grid(tuple(x.shape), block), dtype=torch.float64)
    for i in range(found.shape[-2]):
        for j in range(found.shape[-1]):
            rows, cols = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
            part = x[..., rows, cols].double().abs()
            worst = part.amax(dim=(-2, -1))
            found[..., i, j] = torch.where(torch.isfinite(part).all(-1).all(-1), worst, torch.nan)
    return found


def power_of_two_above(scale: torch.Tensor) -> torch.Tensor:
    """Biased exponent (int64) of the smallest power of two >= scale, within 2^-127..2^127; NaN gives 255."""
    flat = [255 if math.isnan(s) else _exponent_above(s) + 127 for s in scale.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.int64).reshape(scale.shape)


def _exponent_above(value: float) -> int:
    if value <= 2.0**-127:
        return -127
    mantissa, exponent = math.frexp(value)  # value = mantissa * 2^exponent, 0.5 <= mantissa < 1
    return min(exponent - (mantissa == 0.5), 127)


def per_element(scale: torch.Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    """The scale of each element, by index arithmetic."""
    rows = torch.arange(shape[-2]) // block[0]
    cols = torch.arange(shape[-1]) // block[1]
    return scale[..., rows[:, None], cols[None, :]]


def floored(largest: torch.Tensor, floor: float) -> torch.Tensor:
    """max(largest, floor) that keeps NaN; the floor counts as float32."""
    low = torch.tensor(floor, dtype=torch.float32).double()
    return torch.where(largest < low, low, largest)
