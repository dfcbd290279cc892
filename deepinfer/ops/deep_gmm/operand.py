"""One matrix operand in canonical form: payload, scales, and a recipe string that says how to read them.

A recipe is "plain" or "FORMAT:ROWSxCOLS:SCALE" as in "e4m3:1x128:f32"; nothing is inferred from a shape. `PAIRS` is
the closed list of what may be multiplied with what.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.quant import contract
from deepinfer.ops.quant.blocks import decode_payload, decode_scale, dequantize_blocks
from deepinfer.ops.quant.exact import per_element
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import TensorMeta

PLAIN = "plain"
FP8_ROWS = "e4m3:1x128:f32"
FP8_TILES = "e4m3:128x128:f32"
MXFP8_ROWS = "e4m3:1x32:ue8m0"
MXFP8_TILES = "e4m3:32x32:ue8m0"
MXFP4_ROWS = "e2m1:1x32:ue8m0"

PAIRS = {
    PLAIN: (PLAIN,),
    FP8_ROWS: (FP8_TILES, FP8_ROWS),
    MXFP8_ROWS: (MXFP8_TILES, MXFP8_ROWS, MXFP4_ROWS),
}
PLAIN_DTYPES = (torch.bfloat16, torch.float32, torch.float16)


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe; `element` is "" for a plain tensor."""

    element: str = ""
    block: tuple[int, int] = (1, 1)
    scale_dtype: str = ""

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str, argument: str = "recipe") -> Recipe:
        """Raises InvalidArgument that names `argument` when `text` is no recipe."""
        if text == PLAIN:
            return Recipe()
        parts = text.split(":")
        size = parts[1].split("x") if len(parts) == 3 else ()
        if len(size) != 2 or not (size[0].isdigit() and size[1].isdigit()):
            raise invalid(argument, text, 'must be "plain" or "FORMAT:ROWSxCOLS:SCALE"', nearest=FP8_ROWS)
        return Recipe(parts[0], (int(size[0]), int(size[1])), parts[2])


def recipe_of(q: Quantized) -> str:
    """The recipe string of a quantised operand."""
    return f"{q.format}:{q.block[0]}x{q.block[1]}:{q.scale_dtype}"


def shape_of(data: TensorMeta, recipe: str) -> tuple[int, ...]:
    """Logical shape: columns count values, not bytes."""
    return contract.logical(data.shape, Recipe.parse(recipe).element)


def check(op: str, arg: str, data: TensorMeta, scale: TensorMeta | None, recipe: str, rank: int, letters: str) -> None:
    """Payload, scales and recipe of operand `arg` must fit together and have `rank` dimensions."""
    checks.rank(op, arg, data, rank, letters)
    form = Recipe.parse(recipe, f"{op}: {arg}_recipe")
    if not form.element:
        checks.dtype(op, arg, data, PLAIN_DTYPES)
        if scale is not None:
            raise invalid(f"{op}: {arg}_scale", list(scale.shape), "must be None for a plain tensor")
        return
    if scale is None:
        raise invalid(f"{op}: {arg}_scale", None, f"must be given for recipe {recipe!r}")
    contract.quantized(op, data, scale, form.block, form.scale_dtype, form.element, f"{arg}.")


def check_pair(op: str, a: TensorMeta, a_recipe: str, b: TensorMeta, b_recipe: str, names: str = "a, b") -> None:
    """The two recipes must be one of `PAIRS`, and plain tensors must share a dtype."""
    if a_recipe not in PAIRS:
        raise invalid(f"{op}: {names.split(',')[0]}", a_recipe, f"must be one of {tuple(PAIRS)}", nearest=FP8_ROWS)
    if b_recipe not in PAIRS[a_recipe]:
        allowed = PAIRS[a_recipe]
        raise invalid(f"{op}: {names}", f"{a_recipe} x {b_recipe}", f"second must be one of {allowed}", allowed[0])
    if a_recipe == PLAIN and a.dtype != b.dtype:
        raise invalid(f"{op}: {names}", f"{a.dtype} x {b.dtype}", "plain tensors must have one dtype", str(a.dtype))


def check_out_dtype(op: str, a: TensorMeta, a_recipe: str, value: torch.dtype) -> None:
    """Results are float32 or the natural dtype of the inputs (bfloat16 for quantised ones)."""
    allowed = {torch.float32: None, natural_dtype(a.dtype, a_recipe): None}
    if value not in allowed:
        raise invalid(f"{op}: out_dtype", str(value), f"must be one of {[str(d) for d in allowed]}", "torch.float32")


def natural_dtype(dtype: torch.dtype, recipe: str) -> torch.dtype:
    """What the result has when the caller does not say: the plain tensors' dtype, bfloat16 for quantised operands."""
    return dtype if recipe == PLAIN else torch.bfloat16


def widen(data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor:
    """float32 values of an operand; exact but for one rounding of payload times an f32 scale."""
    if scale is None:
        return data if data.dtype is torch.float32 else data.float()
    form = Recipe.parse(recipe)
    return dequantize_blocks(data, scale, form.block, form.scale_dtype, form.element)


def widen_exact(data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor:
    """float64 values of an operand, exact (references only)."""
    if scale is None:
        return data.double()
    form = Recipe.parse(recipe)
    values = decode_payload(data, form.element).double()
    factors = decode_scale(scale, form.scale_dtype).double()
    return values * per_element(factors, form.block, tuple(values.shape))


def rows_of(scale: torch.Tensor | None, recipe: str, start: int, stop: int) -> torch.Tensor | None:
    """Scales of matrix rows [start, stop); `start` must lie on a block border."""
    if scale is None:
        return None
    step = Recipe.parse(recipe).block[0]
    return scale[..., start // step : -(-stop // step), :]
