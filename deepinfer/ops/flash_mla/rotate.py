"""Rotation of the last channels of a vector, pairs (2i, 2i+1): the fused op applies it before and after attention."""

from __future__ import annotations

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """A copy of x [T, h, d] (float32 or float64) with its last w channels rotated, in x's dtype.

    positions [T] are clamped to the table's rows; table [P, w] holds w/2 cosines, then w/2 sines. The inverse negates
    the angle.
    """
    width = table.shape[1]
    cos, sin = table[positions.long().clamp(0, table.shape[0] - 1)].to(x.dtype)[:, None].chunk(2, dim=-1)
    if inverse:
        sin = -sin
    kept, turned = x[..., :-width], x[..., -width:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((kept, pairs), dim=-1)
