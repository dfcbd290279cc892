"""How the CPU multiplies: float32 products of rows with per-group weights, counts read once.

Why float32: without AVX-512 BF16 or AMX, torch's bfloat16 product is slower than its float32 one, while
widening costs one pass over the operands. Products of bf16, f16 and fp8 values are exact in float32, so only the order
of the sum differs from a native kernel.

Two ways to run groups, the same bits (see `product`):
- a loop over non-empty groups, one product each;
- one batched product over all groups with rows padded to the longest: fewer calls, and threads share the groups. Used
  when most groups own a few rows each (decode).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from deepinfer.ops.deep_gmm.operand import PLAIN, Recipe, rows_of, widen
from deepinfer.ops.deep_gmm.portable import BLOCK_ELEMENTS, COPIED, GAP, ranges, room, step, weights_of
from deepinfer.ops.deep_gmm.rows import gapless
from deepinfer_cpu import halves
from deepinfer_cpu.product import Span, padding, product, row_tile

LAYOUT = "cpu_f32"
# Longest group of a padded bmm (measured with 1 and 2 threads at width 256).
MAX_PADDED_ROWS = 32
WHOLE = 1 << 20  # values of all groups that are widened together; more would leave the caches
NARROW = 64  # columns; a narrower last block is joined to the one before, because edge code sums in another order


@cache
def has_bf16_products() -> bool:
    """Whether the processor multiplies bfloat16 natively, by what torch found out about it."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in names)


@dataclass(frozen=True)
class Weights:
    """Weights [G, N, K] in canonical form with their packed copy, if any."""

    data: torch.Tensor
    scale: torch.Tensor | None
    recipe: str
    packed: torch.Tensor | None
    layout: str = ""

    @property
    def halves(self) -> bool:
        """Whether the packed copy is the one of `deepinfer_cpu.halves`."""
        return self.layout == halves.LAYOUT

    def dense(self) -> torch.Tensor | None:
        """float32 [G, N, K] that already exists and is to be used, or None."""
        if self.halves:  # sums in another order: a call with these weights must never take the plain ones
            return None
        if self.packed is not None:
            return self.packed
        return self.data if self.data.dtype is torch.float32 else None

    def widened(self, used: int) -> Weights:
        """The same weights as float32 where one call for all groups costs less than one for each of the `used`."""
        if self.halves or self.dense() is not None or self.data.numel() > WHOLE or 2 * used < self.data.shape[0]:
            return self
        return replace(self, data=widen(self.data, self.scale, self.recipe), scale=None, recipe=PLAIN)

    def place(self, rows: int, groups: int) -> torch.Tensor | None:
        """Memory that `rows` rows of one group after another are widened into, where that is a mere copy."""
        if groups < 2 or self.scale is not None or self.dense() is not None:
            return None
        return room(self.data[0, :rows], COPIED)

    def group(self, g: int, n0: int, n1: int, place: torch.Tensor | None = None) -> torch.Tensor:
        """Rows [n0, n1) of group g's weights in float32, in `place` if given; n0 on a block border."""
        ready = self.dense()
        if ready is not None:
            return ready[g, n0:n1]
        if place is not None:
            return place[: n1 - n0].copy_(self.data[g, n0:n1])
        scale = None if self.scale is None else self.scale[g]
        return weights_of(self.data[g, n0:n1], rows_of(scale, self.recipe, n0, n1), self.recipe, COPIED)


def pack(data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor:
    """float32 copy of weights [..., N, K], stored K-major: a product of 4 rows takes half the time (no transposing).

    `GAP` unused values behind every N keep rows off each other's cache sets (5 to 18 % of a product of 4 to 8 rows).
    """
    turned = widen(data, scale, recipe).transpose(-1, -2)
    made = turned.new_empty((*turned.shape[:-1], turned.shape[-1] + GAP))[..., : turned.shape[-1]]
    return made.copy_(turned).transpose(-1, -2)


class Padded:
    """Row numbers that turn ragged groups into [G, longest] and back."""

    def __init__(self, spans: list[Span], groups: int) -> None:
        longest = max(high - low for _, low, high in spans)
        longest += padding(longest)
        gather = [0] * (groups * longest)
        self.back: list[int] = []
        self.rows: list[int] = []
        for g, low, high in spans:
            base = g * longest
            gather[base : base + high - low] = range(low, high)
            self.back += range(base, base + high - low)
            self.rows += range(low, high)
        self.gather = torch.tensor(gather)
        self.shape = (groups, longest)

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [G, longest, K]; padding repeats row 0's slot, its products are dropped."""
        return x.index_select(0, self.gather).view(*self.shape, x.shape[-1])

    def collect(self, y: torch.Tensor, total: int, out: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """[G, longest, N] -> [M, N] in `dtype`; rows of no group keep `out`'s bytes, or are 0."""
        made = y.view(-1, y.shape[-1]).index_select(0, torch.tensor(self.back)).to(dtype)
        if self.rows == list(range(total)):
            return made if out is None else out.copy_(made)
        result = y.new_zeros((total, y.shape[-1]), dtype=dtype) if out is None else out
        result[torch.tensor(self.rows)] = made
        return result


def pays_to_pad(spans: list[Span], groups: int) -> bool:
    """Whether one padded bmm beats a loop: nearly uniform groups, or padding up to double that threads share."""
    tile = row_tile()
    used = sum(-(-(high - low) // tile) * tile for _, low, high in spans)
    longest = max((high - low for _, low, high in spans), default=0)
    longest += padding(longest)
    most = 2 * used if torch.get_num_threads() > 1 and used >= groups else used + used // 4
    return len(spans) > 2 and longest <= MAX_PADDED_ROWS and groups * longest <= most


def products(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str, weights: Weights, spans: list[Span],
    out: torch.Tensor | None, dtype: torch.dtype,
) -> torch.Tensor:
    """[M, N] with the rows of every span multiplied by its weights; other rows keep `out`'s bytes, or are 0."""
    if weights.halves:
        return _halves(a, weights, spans, out, dtype)
    ready = weights.dense()
    if ready is not None and small(a.shape[0], ready.shape[-1]) and gapless(spans, a.shape[0]):
        made = _joined(widen(a, a_scale, a_recipe), ready.transpose(1, 2), spans).to(dtype)
        return made if out is None else out.copy_(made)
    result = a.new_zeros((a.shape[0], weights.data.shape[1]), dtype=dtype) if out is None else out
    return loop(a, a_scale, a_recipe, weights, spans, result)


def _halves(
    a: torch.Tensor, weights: Weights, spans: list[Span], out: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """`products` of plain rows with weights in the layout of `deepinfer_cpu.halves`."""
    matrices = halves.matrices_of(weights.packed, weights.data)
    if gapless(spans, a.shape[0]):
        made = halves.grouped(a, matrices, spans).to(dtype)
        return made if out is None else out.copy_(made)
    result = a.new_zeros((a.shape[0], weights.data.shape[1]), dtype=dtype) if out is None else out
    return halves.scattered(a, matrices, spans, result)


def _joined(a: torch.Tensor, weights: torch.Tensor, spans: list[Span]) -> torch.Tensor:
    """Products of spans that tile the rows; weights [G, K, N]. The decode path: as few calls as possible."""
    if len(spans) == 1:
        return product(a, weights[spans[0][0]])
    parts = a.split_with_sizes([high - low for _, low, high in spans])
    return torch.cat([product(part, weights[g]) for part, (g, _, _) in zip(parts, spans, strict=True)])


def loop(
    a: torch.Tensor, a_scale: torch.Tensor | None, a_recipe: str, weights: Weights, spans: list[Span],
    result: torch.Tensor, c: torch.Tensor | None = None, bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the rows of every span, plus c and bias, into result [M, N], in blocks of bounded size."""
    form = Recipe.parse(weights.recipe)
    width = weights.data.shape[-1] * (2 if form.element == "e2m1" else 1)
    blocks = columns(result.shape[1], step(width, form.block[0]))
    place = weights.place(max((n1 - n0 for n0, n1 in blocks), default=0), len(spans))
    for g, low, high in spans:
        for n0, n1 in blocks:
            right = weights.group(g, n0, n1, place).t()
            for m0, m1 in ranges(high - low, step(width, row_tile())):
                rows = slice(low + m0, low + m1)
                left = widen(a[rows], rows_of(a_scale, a_recipe, low + m0, low + m1), a_recipe)
                result[rows, n0:n1] = added(
                    product(left, right), None if c is None else c[rows, n0:n1], None if bias is None else bias[n0:n1]
                )
    return result


def columns(total: int, size: int) -> list[tuple[int, int]]:
    """[0, total) in pieces of `size`, a narrow rest joined to the last piece."""
    pieces = ranges(total, size)
    if len(pieces) > 1 and pieces[-1][1] - pieces[-1][0] < NARROW:
        pieces[-2:] = [(pieces[-2][0], total)]
    return pieces


def added(made: torch.Tensor, c: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """`made` (float32) plus the addends, in place."""
    if bias is not None:
        made += bias
    return made if c is None else made.add_(c)


def small(total: int, width: int) -> bool:
    """Whether a float32 copy of all rows is within the block budget."""
    return total * width <= BLOCK_ELEMENTS
