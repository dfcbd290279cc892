"""Portable matrix products: plain torch on any device, memory-bounded, no value of an accelerator read on the host.

Where counts lie in host memory, a grouped product is one product per group. Elsewhere every group is cut into tiles of
`tile` rows. How many tiles there are at most follows from shapes alone (M / tile + G), which group a tile belongs to is
computed on the device, and tiles past the last one write to a spare row. So nothing waits for the counts, and no row is
multiplied by more than one group's weights.
Drawing, tile = 4:  rows 0 1 2 3 4 5 | 6 | 7 8 9      groups of 6, 1, 3 rows
                    tile 0: 0 1 2 3   tile 1: 4 5 - -   tile 2: 6 - - -   tile 3: 7 8 9 -
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.ops.deep_gmm import grouped as shared
from deepinfer.ops.deep_gmm import rows as group_rows
from deepinfer.ops.deep_gmm.operand import Recipe, rows_of, widen
from deepinfer.ops.deep_gmm.rows import Bounds

BLOCK_ELEMENTS = 1 << 22  # float32 values of one operand that exist at a time
WHOLE = 1 << 20  # values of small groups' weights that are widened by one call; more would leave a host's caches
# Rows of float32 weights a multiple of 4 KiB apart share one set of a host's first cache while a product copies them
# (8 rows of 1024 x 1024: 440 us, 325 us with the gap). Below 4 rows a product reads the weights in place.
PITCH, GAP, COPIED = 1024, 16, 4


def dense(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str, result: torch.Tensor,
    c: torch.Tensor | None = None, bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """result [M, N] = a x b^T + c + bias, summed in float32, rounded once to result's dtype."""
    rows, cols = result.shape
    plain = c is None and bias is None and result.dtype is torch.float32
    for n0, n1 in ranges(cols, step(a.shape[-1], Recipe.parse(b_recipe).block[0])):
        right = weights_of(b[n0:n1], rows_of(b_scale, b_recipe, n0, n1), b_recipe, rows).t()
        for m0, m1 in ranges(rows, step(a.shape[-1], 1)):
            left = widen(a[m0:m1], rows_of(a_scale, a_recipe, m0, m1), a_recipe)
            if plain:
                torch.mm(left, right, out=result[m0:m1, n0:n1])
                continue
            product = left @ right
            if c is not None:
                product += c[m0:m1, n0:n1]
            if bias is not None:
                product += bias[n0:n1]
            result[m0:m1, n0:n1] = product
    return result


def weights_of(b: torch.Tensor, scale: torch.Tensor | None, recipe: str, rows: int) -> torch.Tensor:
    """float32 values of weights [N, K] that `rows` rows are multiplied with."""
    if scale is not None or b.dtype is torch.float32 or not gap(b, rows):
        return widen(b, scale, recipe)
    return room(b, rows).copy_(b)


def gap(b: torch.Tensor, rows: int) -> int:
    """Unused values between the rows of a float32 copy of weights [N, K]."""
    return GAP if rows >= COPIED and b.shape[1] % PITCH == 0 and b.device.type == "cpu" else 0


def room(b: torch.Tensor, rows: int) -> torch.Tensor:
    """Memory for the float32 values of weights [N, K]."""
    count, width = b.shape
    return torch.empty((count, width + gap(b, rows)), dtype=torch.float32, device=b.device)[:, :width]


def grouped(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str,
    counts: torch.Tensor, starts: torch.Tensor | None, out_dtype: torch.dtype, out: torch.Tensor | None = None,
) -> torch.Tensor:
    """[M, N] where row m of group g is a[m] x b[g]^T; rows of no group keep `out`'s bytes, or are 0."""
    way = by_group if counts.device.type == "cpu" else by_tile
    return way(a, a_scale, a_recipe, b, b_scale, b_recipe, counts, starts, out_dtype, out)


def by_group(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str,
    counts: torch.Tensor, starts: torch.Tensor | None, out_dtype: torch.dtype, out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`grouped` where counts lie in host memory: one product per group that owns rows."""
    total, cols = a.shape[0], b.shape[1]
    spans = group_rows.host_bounds(counts, starts, total)
    gapless = group_rows.gapless(spans, total)
    result = (a.new_empty if gapless else a.new_zeros)((total, cols), dtype=out_dtype) if out is None else out
    if max(a.numel(), result.numel(), b[:1].numel()) * 2 > BLOCK_ELEMENTS:  # e2m1 has two values per element
        for g, low, high in spans:
            mine = (a[low:high], rows_of(a_scale, a_recipe, low, high), a_recipe)
            dense(*mine, b[g], None if b_scale is None else b_scale[g], b_recipe, result[low:high])
        return result
    right = matrices(b, b_scale, b_recipe, len(spans), total)
    if not gapless:
        for g, low, high in spans:
            left = widen(a[low:high], rows_of(a_scale, a_recipe, low, high), a_recipe)
            result[low:high] = torch.mm(left, right(g))
        return result
    made = result if out_dtype is torch.float32 else a.new_empty((total, cols), dtype=torch.float32)
    sizes = [high - low for _, low, high in spans]
    pairs = zip(spans, widen(a, a_scale, a_recipe).split_with_sizes(sizes), made.split_with_sizes(sizes), strict=True)
    for (g, _, _), left, target in pairs:
        torch.mm(left, right(g), out=target)
    return made if made is result else result.copy_(made)


def matrices(
    b: torch.Tensor, scale: torch.Tensor | None, recipe: str, used: int, rows: int
) -> Callable[[int], torch.Tensor]:
    """g -> float32 [K, N] of b[g], valid until the next call; weights of small groups are widened together."""
    if b.dtype is torch.float32 or (b.numel() <= WHOLE and 2 * used >= b.shape[0]):
        return widen(b, scale, recipe).transpose(1, 2).unbind(0).__getitem__
    if scale is not None:
        return lambda g: widen(b[g], scale[g], recipe).t()
    place = room(b[0], rows // max(used, 1))
    turned, each = place.t(), b.unbind(0)

    def fill(g: int) -> torch.Tensor:
        place.copy_(each[g])
        return turned

    return fill


def by_tile(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str,
    b: torch.Tensor, b_scale: torch.Tensor | None, b_recipe: str,
    counts: torch.Tensor, starts: torch.Tensor | None, out_dtype: torch.dtype, out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`grouped` without reading a count: batched products of tiles, as drawn above."""
    total, groups, cols = a.shape[0], b.shape[0], b.shape[1]
    result = a.new_zeros((total + 1, cols), dtype=out_dtype)
    if not (total and groups and cols):
        return result[:total] if out is None else out
    tile = tile_rows(total, groups)
    owner, rows, valid = tiles(group_rows.bounds(counts, starts, total), tile, total)
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
    if out is None:
        return result[:total]
    return shared.deliver(result[:total], out, group_rows.owners(counts, starts, total) > 0)


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
