"""Public quantisation ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.quant.dequantize import Dequantize
from deepinfer.ops.quant.pack_scales import PackScales
from deepinfer.ops.quant.quantize_fp8 import QuantizeFp8
from deepinfer.ops.quant.quantize_mxfp4 import QuantizeMxfp4
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import Op, get_spec

_fp8 = Op(get_spec(QuantizeFp8.name))
_mxfp4 = Op(get_spec(QuantizeMxfp4.name))
_dequantize = Op(get_spec(Dequantize.name))
_pack = Op(get_spec(PackScales.name))


def quantize_fp8(
    x: torch.Tensor,
    *,
    block: Sequence[int] = (1, 128),
    scale_dtype: str = "f32",
    amax_floor: float = 1e-4,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    validate: bool = False,
) -> Quantized:
    """Quantise a matrix to e4m3 with one scale per block, exact to the bit.

    Args:
        x: [..., rows, cols] f32, bf16 or f16; any strides.
        block: (rows, cols) that share a scale: (1, 128), (1, 32) for activations, (128, 128), (32, 32) for weights;
            any positive pair works, the last block may be ragged.
        scale_dtype: "f32" (amax / 448 as it is) or "ue8m0" (rounded up to a power of two, stored as exponent byte).
        amax_floor: lower bound of a block's largest magnitude; 0 means none (a zero block then has scale 1).
        out: (data, scale) to write into, or None to allocate.
        validate: accepted for uniformity; any values have a defined result.

    Returns:
        `Quantized` with data [..., rows, cols] float8_e4m3fn and scale [..., ceil(rows/br), ceil(cols/bc)].

    Raises:
        InvalidArgument: rank, dtype, block or scale_dtype break the contract.

    Rules for zeros, NaN and infinities: see `deepinfer.ops.quant.quantize_fp8.QuantizeFp8`. Source: OCP FP8 and MX 1.0.

    >>> import torch
    >>> from deepinfer.ops import quant
    >>> q = quant.quantize_fp8(torch.tensor([[1.0, -448.0, 0.0]]))
    >>> q.scale.item(), q.data.float().tolist()
    (1.0, [[1.0, -448.0, 0.0]])
    """
    size = _block("quant.quantize_fp8", block)
    floor = checks.number("quant.quantize_fp8", "amax_floor", amax_floor)
    data, scale = _fp8(x, size, scale_dtype, floor, out=out, validate=validate)
    return Quantized(data, scale, size, scale_dtype, "e4m3")


def quantize_mxfp4(
    x: torch.Tensor,
    *,
    block: Sequence[int] = (1, 32),
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    validate: bool = False,
) -> Quantized:
    """Quantise a matrix to packed e2m1 (two values per byte) with a power-of-two scale per block, exact to the bit.

    Args:
        x: [..., rows, cols] f32, bf16 or f16, cols even; any strides.
        block: (rows, cols) that share a scale.
        out: (data, scale) to write into, or None to allocate.
        validate: accepted for uniformity; any values have a defined result.

    Returns:
        `Quantized` with data [..., rows, cols/2] uint8 (even column in the low nibble) and uint8 exponent bytes.

    Raises:
        InvalidArgument: rank, dtype, an odd number of columns or the block break the contract.

    Source: OCP MX 1.0; contract: `deepinfer.ops.quant.quantize_mxfp4.QuantizeMxfp4`.

    >>> import torch
    >>> from deepinfer.ops import quant
    >>> q = quant.quantize_mxfp4(torch.tensor([[6.0, -0.5]]))
    >>> hex(q.data.item()), q.scale.item()  # -0.5 is code 9, 6.0 is code 7; scale 2^0
    ('0x97', 127)
    """
    size = _block("quant.quantize_mxfp4", block)
    data, scale = _mxfp4(x, size, out=out, validate=validate)
    return Quantized(data, scale, size, "ue8m0", "e2m1")


def dequantize(
    q: Quantized, *, dtype: torch.dtype = torch.float32, out: torch.Tensor | None = None, validate: bool = False
) -> torch.Tensor:
    """Values of a quantised matrix: payload times scale of its block, rounded to float32 and then to `dtype`.

    Args:
        q: any format; f32 scales are used as stored.
        dtype: f32, bf16 or f16.
        out: result [..., rows, cols] of `dtype`, or None to allocate.
        validate: accepted for uniformity; any values have a defined result.

    Returns:
        [..., rows, cols] of `dtype`; blocks with a NaN scale are NaN.

    Raises:
        InvalidArgument: payload and scales do not fit together, or `dtype` is not a float type.

    Source: OCP FP8 and MX 1.0; contract: `deepinfer.ops.quant.dequantize.Dequantize`.

    >>> import torch
    >>> from deepinfer.ops import quant
    >>> quant.dequantize(quant.quantize_mxfp4(torch.tensor([[6.0, -0.5]]))).tolist()
    [[6.0, -0.5]]
    """
    if not isinstance(q, Quantized):
        raise invalid("quant.dequantize: q", type(q).__name__, "must be a Quantized")
    wanted = None if out is None else (out,)
    args = (q.data, q.scale, q.block, q.scale_dtype, q.format, dtype)
    (x,) = _dequantize(*args, out=wanted, validate=validate)
    return x


def pack_scales(
    scale: torch.Tensor,
    *,
    layout: str = "ue8m0x4_mn",
    block_rows: int = 1,
    mn: int | None = None,
    rows: int | torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """Rearrange float32 scales into the MN-major layout a matrix kernel loads; done once for weights.

    Args:
        scale: [..., R, KB] float32.
        layout: "ue8m0x4_mn" (four exponent bytes of consecutive K blocks per int32) or "f32_mn".
        block_rows: matrix rows that share a scale row (128 for 128x128 blocks).
        mn: matrix rows, default R * block_rows.
        rows: valid matrix rows (an int, or one count per matrix on the device); the rest is padding, never looked at.
        out: result, or None to allocate.
        validate: read the scales and raise where one is not a power of two (synchronises with the device). Without it
            such a scale becomes the NaN byte 0xFF.

    Returns:
        [..., ceil(KB/4) or KB, align(mn, 4)] int32 or float32, contiguous; padding is 0.

    Raises:
        InvalidArgument: a valid scale is not a power of two (the message names its row), or shapes do not fit.

    Source: OCP MX 1.0 (E8M0 scales); contract: `deepinfer.ops.quant.pack_scales.PackScales`.

    >>> import torch
    >>> from deepinfer.ops import quant
    >>> hex(quant.pack_scales(torch.tensor([[1.0, 2.0, 0.5]]))[0, 0].item())
    '0x7e807f'
    """
    op = "quant.pack_scales"
    step = checks.integer(op, "block_rows", block_rows)
    if not isinstance(scale, torch.Tensor) or scale.ndim < 2:
        shown = list(scale.shape) if isinstance(scale, torch.Tensor) else scale
        raise invalid(f"{op}: scale", shown, "must be a torch.Tensor of at least 2 dimensions [..., R, KB]")
    size = scale.shape[-2] * step if mn is None else checks.integer(op, "mn", mn)
    if isinstance(rows, int):
        rows = torch.full(scale.shape[:-2], checks.integer(op, "rows", rows), dtype=torch.int64, device=scale.device)
    args = (scale, layout, step, size, rows)
    (packed,) = _pack(*args, out=None if out is None else (out,), validate=validate)
    return packed


def _block(op: str, block: Sequence[int]) -> tuple[int, int]:
    if not isinstance(block, Sequence) or len(block) != 2:
        raise invalid(f"{op}: block", block, "must be two integers (rows, cols)", nearest=(1, 128))
    return checks.integer(op, "block[0]", block[0]), checks.integer(op, "block[1]", block[1])
