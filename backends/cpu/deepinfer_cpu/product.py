"""float32 products whose rows do not depend on each other: the bits of row i of A x B follow from row i and B alone.

A BLAS picks its code by the number of rows: one row goes to a matrix-vector routine, and rows left over from its
register tile go to edge code that sums in another order. With a whole number of row tiles neither happens, however many
rows there are and wherever threads cut them. So every product here is padded to a multiple of `row_tile()` rows.
The tile is found by trying (4 rows for MKL's AVX2 code), because no BLAS documents it; the conformance suite checks
what follows from it on the machine where it runs. Bound: 2 M N K FLOPs, and 4 N K bytes of B for a few rows.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.functional import pad

Span = tuple[int, int, int]  # (group, first row, end)
LEAST = 16  # columns; edge code for fewer sums in an order that depends on the address of a row
TILES = (4, 8, 16, 32)
# (N, K): inside one block of K, and over several; few columns and many.
PROBES = ((16, 96), (256, 256), (72, 1100))


@cache
def _tile_for(threads: int) -> int:
    """The smallest tile with equal bits at every multiple of it that is tried, for `threads` threads."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(_normal(6 * TILES[-1], k, generator), _normal(n, k, generator).t())
             for n, k in PROBES]
    return next((tile for tile in TILES if all(_alike(a, b, tile) for a, b in pairs)), TILES[-1])


def _normal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32)


def _alike(a: torch.Tensor, b: torch.Tensor, tile: int) -> bool:
    whole = torch.mm(a, b)
    cuts = ((first * tile, (first + count) * tile) for count in (1, 2, 3, 5) for first in (0, 1))
    return all(torch.equal(torch.mm(a[low:high], b), whole[low:high]) for low, high in cuts)


def row_tile() -> int:
    """Products take rows in multiples of this (at the current number of threads)."""
    return _tile_for(torch.get_num_threads())


def padding(rows: int) -> int:
    """Rows that are missing to a multiple of the tile."""
    return -rows % row_tile()


def filled(x: torch.Tensor) -> torch.Tensor:
    """x [..., M, K] with copies of its own rows up to a multiple of the tile."""
    rows = x.shape[-2]
    missing = padding(rows)
    if not missing:
        return x
    return torch.cat((x, x[..., :missing, :]) if missing <= rows else (x,) * row_tile(), -2)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left [M, K] @ right [K, N]."""
    columns = right.shape[1]
    if 0 < columns < LEAST:
        return product(left, pad(right, (0, LEAST - columns)))[:, :columns].contiguous()
    return torch.mm(filled(left), right)[: left.shape[0]]


def products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left [G, M, K] @ right [G, K, N], group by group; every row as `product` gives it."""
    columns = right.shape[2]
    if 0 < columns < LEAST:
        return products(left, pad(right, (0, LEAST - columns)))[:, :, :columns].contiguous()
    return torch.bmm(filled(left), right)[:, : left.shape[1]].contiguous()
