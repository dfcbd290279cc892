"""Random operands for the cases of this family.

Values are standard normal; quantised operands are quantised from such values, so that scales and payloads are
realistic. `bulk` fills big operands for timing with random payload bytes instead, which takes no quantiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deepinfer.ops.deep_gmm.operand import FP8_ROWS, FP8_TILES, MXFP4_ROWS, MXFP8_ROWS, MXFP8_TILES, PLAIN, Recipe
from deepinfer.ops.quant.blocks import grid, quantize_fp8_blocks, quantize_mxfp4_blocks
from deepinfer.ops.quant.cases import view

# name -> (plain dtype, recipe of A, recipe of B)
PAIRS: dict[str, tuple[torch.dtype, str, str]] = {
    "bf16": (torch.bfloat16, PLAIN, PLAIN),
    "f32": (torch.float32, PLAIN, PLAIN),
    "f16": (torch.float16, PLAIN, PLAIN),
    "fp8": (torch.bfloat16, FP8_ROWS, FP8_TILES),
    "fp8_rows": (torch.bfloat16, FP8_ROWS, FP8_ROWS),
    "mxfp8": (torch.bfloat16, MXFP8_ROWS, MXFP8_TILES),
    "mxfp8_rows": (torch.bfloat16, MXFP8_ROWS, MXFP8_ROWS),
    "fp8_fp4": (torch.bfloat16, MXFP8_ROWS, MXFP4_ROWS),
}
Operand = tuple[torch.Tensor, torch.Tensor | None]


def encode(x: torch.Tensor, recipe: str, dtype: torch.dtype) -> Operand:
    """(payload, scales) of float32 values in a recipe, or (x in dtype, None)."""
    form = Recipe.parse(recipe)
    if not form.element:
        return x.to(dtype), None
    if form.element == "e2m1":
        return quantize_mxfp4_blocks(x, form.block)
    return quantize_fp8_blocks(x, form.block, form.scale_dtype == "ue8m0")


def random(shape: Sequence[int], recipe: str, dtype: torch.dtype, generator: torch.Generator) -> Operand:
    """An operand of standard normal values."""
    return encode(torch.randn(tuple(shape), generator=generator), recipe, dtype)


def bulk(shape: Sequence[int], recipe: str, dtype: torch.dtype, generator: torch.Generator) -> Operand:
    """A big operand, cheap to make: uniform values, or random finite payload bytes under scales near 1."""
    form = Recipe.parse(recipe)
    if not form.element:
        return torch.empty(tuple(shape), dtype=dtype).uniform_(-1, 1, generator=generator), None
    last = shape[-1] // (2 if form.element == "e2m1" else 1)
    data = torch.empty((*shape[:-1], last), dtype=torch.uint8).random_(0, 240, generator=generator)
    data += 8 * (data >= 120)  # 0x00..0x77 and 0x80..0xF7: both signs, magnitudes up to 240, no NaN
    scale = torch.rand(grid(tuple(shape), form.block), generator=generator) + 0.5
    if form.scale_dtype == "ue8m0":
        return _typed(data, form.element), torch.full(scale.shape, 120, dtype=torch.uint8)
    return _typed(data, form.element), scale * 2.0**-7


def _typed(data: torch.Tensor, element: str) -> torch.Tensor:
    return data.view(torch.float8_e4m3fn) if element == "e4m3" else data


def restride(kind: str, operand: Operand) -> Operand:
    """The same operand behind other strides, scales too (fp8 payload goes as bytes)."""
    data, scale = operand
    if data.dtype is torch.float8_e4m3fn:
        data = view(kind, data.view(torch.uint8)).view(torch.float8_e4m3fn)
    else:
        data = view(kind, data)
    return data, None if scale is None else view(kind, scale)


def flat(name: str, operand: Operand, recipe: str) -> dict[str, Any]:
    """Canonical arguments of operand `name`."""
    return {name: operand[0], f"{name}_scale": operand[1], f"{name}_recipe": recipe}


def unpacked(name: str = "b") -> dict[str, Any]:
    """Canonical arguments that say: no packed form."""
    return {f"{name}_packed": None, f"{name}_layout": ""}


def poisoned(operand: Operand, bad: torch.Tensor) -> Operand:
    """A copy whose entries `bad` (bool over the leading dimensions) are NaN, scales too, behind the same strides.

    An operand that repeats one row (stride 0) stays as it is: it has no entry of its own to spoil.
    """
    data, scale = operand
    if any(stride == 0 and size > 1 for size, stride in zip(data.shape, data.stride(), strict=True)):
        return operand
    data = _copy(data)
    if data.dtype is torch.float8_e4m3fn:
        data.view(torch.uint8)[bad] = 0x7F
    else:
        data[bad] = 0xFF if data.dtype is torch.uint8 else torch.nan
    if scale is not None:
        scale = _copy(scale)
        scale[bad] = 0xFF if scale.dtype is torch.uint8 else torch.nan
    return data, scale


def _copy(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
