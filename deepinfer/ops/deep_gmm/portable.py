"""Portable matrix products: plain torch on any device, memory-bounded, no value of an accelerator read on the host.

Where counts lie in host memory, a grouped product is one product per group. Elsewhere every group is cut into tiles of
`tile` rows. How many tiles there are at most follows from shapes alone (M / tile + G), which group a tile belongs to is
computed on the device, and tiles past the last one write to a spare row. So nothing waits for the counts, and no row is
multiplied by more than one group's weights.
Drawing, tile = 4:  rows 0 1 2 3 4 5 | 6 | 7 8 9      groups of 6, 1, 3 rows
                    tile 0: 0 1 2 3   tile 1: 4 5 - -   tile 2: 6 - - -   tile 3: 7 8 9 -
"""

from __future__ import annotations

import torch

from deepinfer.ops.deep_gmm.operand import Recipe, rows_of, widen
from deepinfer.ops.deep_gmm.rows import Bounds

BLOCK_ELEMENTS = 1 << 22  # float32 values of one operand that exist at a time


def dense(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str, result: torch.Tensor,
    c: torch.Tensor | None = None, bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """result [M, N] = a x b^T + c + bias, summed in float32, rounded once to result's dtype."""
    rows, cols = result.shape
    for n0, n1 in ranges(cols, step(a.shape[-1], Recipe.parse(b_recipe).block[0])):
        right = widen(b[n0:n1], rows_of(b_scale, b_recipe, n0, n1), b_recipe).t()
        for m0, m1 in ranges(rows, step(a.shape[-1], 1)):
            left = widen(a[m0:m1], rows_of(a_scale, a_recipe, m0, m1), a_recipe)
            product = left @ right
            if c is not None:
                product += c[m0:m1, n0:n1]
            if bias is not None:
                product += bias[n0:n1]
            result[m0:m1, n0:n1] = product
    return result


def grouped(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str, bounds: Bounds, out_dtype: torch.dtype,
) -> torch.Tensor:
    """[M, N] where row m of group g is a[m] x b[g]^T; rows of no group are 0."""
    way = by_group if bounds.low.device.type == "cpu" else by_tile
    return way(a, a_scale, a_recipe, b, b_scale, b_recipe, bounds, out_dtype)


def by_group(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str, bounds: Bounds, out_dtype: torch.dtype,
) -> torch.Tensor:
    """`grouped` where the bounds lie in host memory: one product per group that owns rows."""
    result = a.new_zeros((a.shape[0], b.shape[1]), dtype=out_dtype)
    for g, (low, high) in enumerate(zip(bounds.low.tolist(), bounds.high.tolist(), strict=True)):
        if low < high:
            mine = (a[low:high], rows_of(a_scale, a_recipe, low, high), a_recipe)
            dense(*mine, b[g], None if b_scale is None else b_scale[g], b_recipe, result[low:high])
    return result


def by_tile(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str, bounds: Bounds, out_dtype: torch.dtype,
) -> torch.Tensor:
    """`grouped` without reading the bounds: batched products of tiles, as drawn above."""
    total, groups, cols = a.shape[0], b.shape[0], b.shape[1]
    result = a.new_zeros((total + 1, cols), dtype=out_dtype)
    if not (total and groups and cols):
        return result[:total]
    tile = tile_rows(total, groups)
    owner, rows, valid = tiles(bounds, tile, total)
    width = a.shape[-1] * (2 if Recipe.parse(a_recipe).element == "e2m1" else 1)
    for n0, n1 in ranges(cols, step(width, Recipe.parse(b_recipe).block[0])):
        weights, factors = b[:, n0:n1], rows_of(b_scale, b_recipe, n0, n1)
        for t0, t1 in ranges(owner.shape[0], max(BLOCK_ELEMENTS // max((n1 - n0) * width, 1), 1)):
            index = rows[t0:t1].reshape(-1)
            left = widen(take(a, index), None if a_scale is None else take(a_scale, index), a_recipe)
            mine = owner[t0:t1]
            right = widen(take(weights, mine), None if factors is None else take(factors, mine), b_recipe)
            product = torch.bmm(left.view(t1 - t0, tile, width), right.transpose(1, 2)).flatten(0, 1)
            target = torch.where(valid[t0:t1].reshape(-1), index, total)
            result[target, n0:n1] = product.to(out_dtype)
    return result[:total]


def tile_rows(total: int, groups: int) -> int:
    """Rows per tile: about the mean group, a power of two in [1, 128]."""
    return min(1 << max(total // groups - 1, 0).bit_length(), 128)


def tiles(bounds: Bounds, tile: int, total: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(group of each tile [t], its rows [t, tile], which of them are real [t, tile]); t depends on shapes alone."""
    groups = bounds.low.shape[0]
    need = (bounds.high - bounds.low + tile - 1) // tile
    ends = need.cumsum(0)
    tile_id = torch.arange(total // tile + groups, device=ends.device)
    owner = torch.searchsorted(ends, tile_id, right=True)
    real = owner < groups
    owner = owner.clamp(max=groups - 1)
    first = bounds.low[owner] + (tile_id - (ends - need)[owner]) * tile
    rows = first[:, None] + torch.arange(tile, device=ends.device)
    valid = real[:, None] & (rows < bounds.high[owner][:, None])
    return owner, torch.where(valid, rows, 0), valid


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x[index] along dimension 0; fp8 goes as bytes, which every device can gather."""
    if x.dtype is torch.float8_e4m3fn:
        return x.view(torch.uint8)[index].view(torch.float8_e4m3fn)
    return x[index]


def step(width: int, align: int) -> int:
    """Rows per block of float32 copies of rows of `width`, a multiple of `align`."""
    return max(BLOCK_ELEMENTS // max(width, 1) // align, 1) * align


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    """[0, total) in pieces of `size`."""
    return [(start, min(start + size, total)) for start in range(0, total, size)]
