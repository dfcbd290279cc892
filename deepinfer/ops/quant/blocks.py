"""Arithmetic on blocks of a matrix: largest magnitudes, scales spread over elements, dequantisation.

Invariants: the last block of a row or column may be ragged (no padding is ever read); work stays in the input's
strides until a copy is needed anyway; all scale arithmetic is float32 with true division.
"""

from __future__ import annotations

import torch

from deepinfer.ops.quant.codec import (
    E2M1_MAX,
    E4M3_MAX,
    e2m1_decode_packed,
    e2m1_encode,
    e2m1_pack,
    e4m3_decode,
    e4m3_encode,
    ue8m0_decode,
    ue8m0_encode,
)

MXFP4_FLOOR = 6.0 * 2.0**-126


def fitted(block: tuple[int, int], rows: int, cols: int) -> tuple[int, int]:
    """The same blocks, cut to the matrix: a block larger than the matrix needs no padding."""
    return min(block[0], max(rows, 1)), min(block[1], max(cols, 1))


def grid(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of a matrix [..., rows, cols] cut into `block`s."""
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def tiled(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """[..., rows, cols] -> [..., rb, block rows, cb, block cols], ragged ends filled with zeros."""
    rows, cols = x.shape[-2:]
    block = fitted(block, rows, cols)
    rb, cb = grid((rows, cols), block)
    if rb * block[0] != rows or cb * block[1] != cols:
        x = torch.nn.functional.pad(x, (0, cb * block[1] - cols, 0, rb * block[0] - rows))
    return x.reshape(*x.shape[:-2], rb, block[0], cb, block[1])


def untiled(tiles: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Inverse of `tiled`."""
    return tiles.flatten(-2).flatten(-3, -2)[..., :rows, :cols]


def spread(scale: torch.Tensor, block: tuple[int, int], rows: int, cols: int) -> torch.Tensor:
    """Scales [..., rb, cb] -> one per element [..., rows, cols]."""
    block = fitted(block, rows, cols)
    if block[0] != 1:
        scale = scale.repeat_interleave(block[0], -2)[..., :rows, :]
    return scale.repeat_interleave(block[1], -1)[..., :cols]


def amax(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Largest magnitude of each block, float32; NaN where the block holds a NaN. A matrix without elements has none."""
    if x.numel() == 0:
        return x.new_zeros(grid(tuple(x.shape), block), dtype=torch.float32)
    return tiled(x.float(), block).abs().amax(dim=(-3, -1))


def fp8_scale(largest: torch.Tensor, ue8m0: bool, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale as float32, scale as stored) of fp8 blocks with these largest magnitudes."""
    ratio = largest.clamp(min=floor) / E4M3_MAX
    bad = ~torch.isfinite(largest)
    if ue8m0:
        stored = ue8m0_encode(torch.where(bad, torch.full_like(ratio, torch.nan), ratio))
        return ue8m0_decode(stored), stored
    scale = torch.where(ratio == 0, torch.ones_like(ratio), ratio)
    scale = torch.where(bad, torch.full_like(scale, torch.nan), scale)
    return scale, scale


def mxfp4_scale(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale as float32, biased exponent byte) of fp4 blocks with these largest magnitudes."""
    ratio = largest.clamp(min=MXFP4_FLOOR) / E2M1_MAX
    stored = ue8m0_encode(torch.where(torch.isfinite(largest), ratio, torch.full_like(ratio, torch.nan)))
    return ue8m0_decode(stored), stored


def quotient(x: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """x / scale of its block in float32."""
    if x.numel() == 0:
        return x.float()
    rows, cols = x.shape[-2:]
    return untiled(tiled(x.float(), block) / scale[..., :, None, :, None], rows, cols)


def fp8_payload(x: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """e4m3 payload of x under float32 scales; every element of a block whose scale is NaN is the NaN 0x7F."""
    code = e4m3_encode(quotient(x, scale, block)).view(torch.uint8)
    bad = code & 0x7F == 0x7F
    return torch.where(bad, torch.full_like(code, 0x7F), code).view(torch.float8_e4m3fn)


def quantize_fp8_blocks(
    x: torch.Tensor, block: tuple[int, int], ue8m0: bool, floor: float = 1e-4
) -> tuple[torch.Tensor, torch.Tensor]:
    """(payload, stored scales) of `quant.quantize_fp8`; ops that quantise on the way share these bits."""
    scale, stored = fp8_scale(amax(x, block), ue8m0, floor)
    return fp8_payload(x, scale, block), stored


def quantize_mxfp4_blocks(x: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed payload, exponent bytes) of `quant.quantize_mxfp4`."""
    scale, stored = mxfp4_scale(amax(x, block))
    return e2m1_pack(e2m1_encode(quotient(x, scale, block))), stored


def decode_payload(data: torch.Tensor, element: str) -> torch.Tensor:
    """Payload of format "e4m3" or "e2m1" -> float32 values before scaling."""
    return e4m3_decode(data) if element == "e4m3" else e2m1_decode_packed(data)


def decode_scale(scale: torch.Tensor, scale_dtype: str) -> torch.Tensor:
    """Stored scales ("f32", "ue8m0", "e4m3") -> float32, exact."""
    if scale_dtype == "ue8m0":
        return ue8m0_decode(scale)
    return scale.float() if scale_dtype == "f32" else e4m3_decode(scale)


def dequantize_blocks(
    data: torch.Tensor, scale: torch.Tensor, block: tuple[int, int], scale_dtype: str, element: str
) -> torch.Tensor:
    """float32 values of a quantised matrix: payload times scale, one rounding."""
    values = decode_payload(data, element)
    rows, cols = values.shape[-2:]
    if values.numel() == 0:
        return values
    factors = decode_scale(scale, scale_dtype)
    block = fitted(block, rows, cols)
    if cols % block[1] or rows % block[0]:
        return values.mul_(spread(factors, block, rows, cols))
    return untiled(tiled(values, block).mul_(factors[..., :, None, :, None]), rows, cols)
