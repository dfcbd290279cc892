"""The activation between the two products of an expert: clamp, silu(gate) * up * route weight, optional quantisation.

Invariant: all arithmetic is in the dtype of the given rows (float32 in kernels, float64 in references); rounding
before and after is the caller's.
"""

from __future__ import annotations

import torch

from deepinfer.ops.deep_gmm.operand import FP8_ROWS, MXFP8_ROWS, PLAIN, Recipe
from deepinfer.ops.elementwise import silu
from deepinfer.ops.quant.blocks import quantize_fp8_blocks

QUANTIZE = {"": PLAIN, "fp8_1x128": FP8_ROWS, "mxfp8": MXFP8_ROWS}


def activate(h: torch.Tensor, limit: float | None, weights: torch.Tensor | None) -> torch.Tensor:
    """[..., 2I] (gate, then up) -> silu(min(gate, limit)) * clamp(up, +-limit) * weights[..., None], [..., I]."""
    gate, up = h.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    made = silu(gate).mul_(up)
    return made if weights is None else made.mul_(weights.unsqueeze(-1))


def quantize(act: torch.Tensor, recipe: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(payload, scales) of float32 activations in an fp8 recipe of `QUANTIZE`."""
    form = Recipe.parse(recipe)
    return quantize_fp8_blocks(act, form.block, form.scale_dtype == "ue8m0")
