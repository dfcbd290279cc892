"""How close a product in float32 accumulation must be to the exact one.

Bounds on the whole result are the similarity bounds published for these kernels (1e-10 for float32 results of plain
inputs, 1e-5 otherwise; references dequantise exactly, so quantisation error does not count). An element may be off by
one ulp of its dtype, or by `ACCUMULATION` of the size a sum of K products has when their signs are random:
max|a_i| * max|b_j| / sqrt(K) with Euclidean row norms. Tensor cores keep 13 bits below the largest product of an fp8
step; plain inputs keep all of float32 but may truncate.
"""

from __future__ import annotations

import math

import torch

from deepinfer.ops.deep_gmm.operand import PLAIN
from deepinfer.registry import Tolerance

ACCUMULATION = {True: 2.0**-15, False: 2.0**-10}  # plain, quantised
ULP = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def tolerance(a: torch.Tensor, b: torch.Tensor, recipe: str, out_dtype: torch.dtype, extra: float = 0.0) -> Tolerance:
    """Bounds for products of rows of `a` with rows of `b` (float64 [..., K]); `extra` is the largest addend."""
    plain = recipe == PLAIN
    size = row_norm(a) * row_norm(b) / math.sqrt(max(a.shape[-1], 1))
    absolute = ACCUMULATION[plain] * size + 2.0**-22 * extra + 1e-30
    return Tolerance(absolute, ULP[out_dtype], 1e-10 if plain and out_dtype is torch.float32 else 1e-5)


def row_norm(x: torch.Tensor) -> float:
    """Largest Euclidean norm of a row, NaN and infinities not counted."""
    if x.numel() == 0:
        return 0.0
    return float(x.nan_to_num(0.0, 0.0, 0.0).norm(dim=-1).max())


def largest(x: torch.Tensor | None) -> float:
    """Largest finite magnitude; 0 for nothing."""
    if x is None or x.numel() == 0:
        return 0.0
    return float(x.double().nan_to_num(0.0, 0.0, 0.0).abs().max())
