"""Compiled shapes of the bf16 products on SM90 and SM100, and the model that picks one for a problem.

Two epilogues: by TMA (`sums` false), and through float32 sums in shared memory, which writes what TMA cannot and lets
the CTAs of a cluster split K (`parts`; see include/layout/sums.cuh). The choice depends on shapes alone, so equal calls
add in an equal order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from deepinfer_cuda.kernels.base import Unit

PARTS = (1, 2, 4, 8)  # 8 is the portable limit of a cluster; layout/sums.cuh needs powers of two


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Tile:
    """One compiled shape of sm90_gemm_bf16: rows of one CTA, columns, stages, CTAs that share B, the epilogue; and of
    a launch: in how many parts it splits K, and whether it may begin while the kernel before it ends."""

    rows: int
    cols: int
    stages: int
    cluster: int
    sums: bool = False
    parts: int = 1
    ahead: bool = False

    kernel: ClassVar[str] = "sm90_gemm_bf16"
    header: ClassVar[str] = "kernels/sm90/gemm_bf16.cuh"
    macro: ClassVar[str] = "DI_SM90_GEMM_BF16"
    load_rows: ClassVar[int] = 64  # rows of A per copy; the matrix unit multiplies as many at once
    store_rows: ClassVar[int] = 64  # rows of D per copy
    even: ClassVar[bool] = False  # whether the rows of a group are cut into tiles of one height
    flops: ClassVar[int] = 4096  # dense bf16 FLOP per cycle and SM

    @property
    def band(self) -> int:
        """Cluster tiles per raster band; the best of 2, 4, 8 on an H200 at large shapes."""
        return 8 if self.cluster > 1 else 2

    @property
    def efficiency(self) -> float:
        """Rate relative to the largest tile where the matrix unit is the bound; measured on an H200 at 8192^3."""
        known = {(128, 256): 1.0, (128, 128): 0.9, (64, 256): 0.91, (64, 128): 0.8, (128, 64): 0.6, (64, 64): 0.6}
        return {**known, (64, 192): 0.85, (64, 160): 0.8, (128, 192): 0.95, (128, 160): 0.9}[self.rows, self.cols]

    def box(self, rows: int) -> int:
        """Rows of A per copy in a product of `rows` rows: no more than there are, in swizzle atoms of 8."""
        return min(self.load_rows, max(ceil_div(rows, 8), 1) * 8)

    @property
    def ctas(self) -> int:
        """CTAs of one cluster of a launch."""
        return self.cluster * self.parts

    @property
    def symbol(self) -> str:
        return f"{self.kernel}_{self.rows}x{self.cols}x{self.stages}_c{self.cluster}{'_sums' if self.sums else ''}"

    @property
    def arguments(self) -> tuple[int | str, ...]:
        """Of the kernel template."""
        return self.rows, self.cols, self.stages, self.cluster, str(self.sums).lower()

    @property
    def unit(self) -> Unit:
        """What is compiled; `parts` and `ahead` belong to the launch."""
        return Unit(self.symbol, self.header, self.macro, self.arguments)

    @property
    def threads(self) -> int:
        return 128 * (1 + self.rows // 64)

    @property
    def shared_bytes(self) -> int:
        """As GemmBf16::kSharedBytes in sm90/gemm_bf16.cuh."""
        stage = (self.rows + self.cols) * 64 * 2
        store = self.rows * self.cols * 4 if self.sums else self.rows // 64 * 2 * 8192
        barriers = 2 * self.stages + (2 * self.rows // 64 if self.sums else 0)
        return 1024 + self.stages * stage + store + 8 * barriers

    def slots(self, units: int) -> int:
        """Clusters that run at once on `units` SMs with one CTA on each. Larger ones leave SMs over in some GPCs: an
        H200 of 132 SMs holds 66 clusters of 2, 30 of 4 and 15 of 8 (cuOccupancyMaxActiveClusters)."""
        usable = units if self.ctas <= 2 else units * 10 // 11
        return max(usable // self.ctas, 1)


@dataclass(frozen=True)
class MaskedTile(Tile):
    """sm90_masked_bf16: tiles of up to `rows` rows, as high as a group's count asks for. It has one compiled shape."""

    kernel: ClassVar[str] = "sm90_masked_bf16"
    header: ClassVar[str] = "kernels/sm90/masked_bf16.cuh"
    macro: ClassVar[str] = "DI_SM90_MASKED_BF16"
    load_rows: ClassVar[int] = 32
    even: ClassVar[bool] = True

    @property
    def band(self) -> int:
        """All tiles of a column side by side, so that weights come from memory once."""
        return 8

    @property
    def efficiency(self) -> float:
        return 1.0

    @property
    def symbol(self) -> str:
        return f"{self.kernel}_{self.rows}x{self.cols}"

    @property
    def arguments(self) -> tuple[int | str, ...]:
        return ()

    @property
    def threads(self) -> int:
        return 128 * (1 + self.cols // 64)

    @property
    def shared_bytes(self) -> int:
        """As MaskedBf16::kSharedBytes in sm90/masked_bf16.cuh."""
        ring, store = self.stages * (self.rows + self.cols) * 64 * 2, self.cols // 64 * 2 * 8192
        return 1024 + ring + store + 8 * 2 * (4 + 6 + 8) + self.threads * 2


@dataclass(frozen=True)
class Sm100Tile(Tile):
    """One compiled shape of sm100_gemm_bf16. `cluster` is 2 for a pair of CTAs, each of which loads half of B."""

    kernel: ClassVar[str] = "sm100_gemm_bf16"
    header: ClassVar[str] = "kernels/sm100/gemm_bf16.cuh"
    macro: ClassVar[str] = "DI_SM100_GEMM_BF16"
    load_rows: ClassVar[int] = 128
    store_rows: ClassVar[int] = 32
    flops: ClassVar[int] = 8192

    def box(self, rows: int) -> int:
        return self.load_rows

    @property
    def efficiency(self) -> float:
        """Not measured: no such device was at hand."""
        return 1.0

    @property
    def arguments(self) -> tuple[int | str, ...]:
        return self.cols, self.stages, self.cluster, str(self.sums).lower()

    @property
    def threads(self) -> int:
        return 192

    @property
    def shared_bytes(self) -> int:
        """As GemmBf16::kSharedBytes in sm100/gemm_bf16.cuh."""
        stage = (self.rows + self.cols // self.cluster) * 64 * 2
        store = self.rows * self.cols * 4 if self.sums else 4 * 2 * 4096
        barriers = 2 * self.stages + 4 + (8 if self.sums else 0)
        return 1024 + self.stages * stage + store + 8 * (barriers + 1)


TILES = (
    Tile(128, 256, 4, 2), Tile(128, 256, 4, 1), Tile(128, 128, 6, 1), Tile(64, 256, 5, 1), Tile(64, 128, 8, 1),
    Tile(64, 64, 12, 1), Tile(128, 128, 4, 1, sums=True), Tile(128, 64, 8, 1, sums=True),
    Tile(64, 128, 8, 1, sums=True), Tile(64, 64, 12, 1, sums=True),
)
FEW_TILES = (  # for dense products of few rows alone
    Tile(64, 192, 6, 1), Tile(128, 192, 4, 1), Tile(64, 128, 8, 2), Tile(64, 160, 6, 1, sums=True),
    Tile(128, 160, 4, 1, sums=True),
)
DENSE_TILES = (*TILES, *FEW_TILES)
MASKED_TILES = (MaskedTile(256, 128, 4, 1), *(tile for tile in TILES if tile.sums))
SM100_TILES = (
    Sm100Tile(128, 256, 6, 2), Sm100Tile(128, 256, 4, 1), Sm100Tile(128, 128, 6, 1), Sm100Tile(128, 64, 8, 1),
    Sm100Tile(128, 128, 8, 2), Sm100Tile(128, 128, 4, 1, sums=True), Sm100Tile(128, 64, 7, 1, sums=True),
)


# Cycles and bytes of the model below, fitted to the tiles' times at 30 shapes of 1 to 256 rows on an H200
# (bench/sm90_gemm_tune.py); its choices there take 1.02 times as long as the best ones on average, 1.17 at worst.
COPY, COPY_BYTES = 40, 128  # cycles to start a copy, bytes per cycle of one SM
SHARED_BYTES = 66  # bytes per cycle and SM when all load at once
FEW_ROWS = 256  # up to here a dense product is bound by reading its weights
AHEAD_BLOCKS = 112  # K blocks of one CTA; longer ones lost up to 20 % by an early start
FILLINGS = (1 / 64, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 1 / 2, 1)  # parts of their capacity that groups may hold
START, SUMS, SPLIT = 1500, 4300, 5650  # first copies and last stores; sums of 64 columns; the exchange between parts


def cycles(tile: Tile, rows: int, cols: int, depth: int, units: int, groups: int = 1) -> float:
    """Modelled cycles for `groups` groups of `rows` rows: waves of tiles times the slowest of matrix unit, copies of
    one SM and copies of all, per K block of 64, plus start and epilogue."""
    tiles_m, slots = ceil_div(rows, tile.rows * tile.cluster), tile.slots(units)
    tiles, high = groups * tiles_m * ceil_div(cols, tile.cols), ceil_div(rows, tiles_m) if tile.even else rows
    copies = min(tile.rows // tile.load_rows, ceil_div(high, tile.load_rows))
    used = copies * tile.load_rows
    nbytes = (used + tile.cols / tile.cluster) * 128
    math = 2.0 * used * tile.cols * 64 / (tile.flops * tile.efficiency)
    alone = nbytes / COPY_BYTES + COPY * (copies + 1)
    together = min(tiles, slots) * tile.ctas * nbytes / (SHARED_BYTES * units)
    blocks = ceil_div(ceil_div(depth, tile.parts), 64)
    finish = SUMS * tile.cols / 64 * tile.sums + SPLIT * (tile.parts > 1)
    return ceil_div(tiles, slots) * (max(math, alone, together) * blocks + START + finish)


def choose(
    rows: int, cols: int, depth: int, units: int, groups: int = 1, tiles: Sequence[Tile] = TILES, by_tma: bool = True
) -> Tile:
    """The tile with the fewest modelled cycles; among equals the lowest (it has more stages), then the first listed.

    `by_tma` says whether TMA can write the result, so that tiles with either epilogue will do.
    """
    blocks = max(ceil_div(depth, 64), 1)
    found = [tile for tile in tiles if by_tma and not tile.sums]
    found += [replace(tile, parts=n) for tile in tiles if tile.sums for n in PARTS if n <= blocks]
    return min(found, key=lambda tile: (cycles(tile, max(rows, 1), cols, depth, units, groups), tile.rows))


def choose_dense(
    rows: int, cols: int, depth: int, units: int, groups: int = 1, tiles: Sequence[Tile] = DENSE_TILES,
    by_tma: bool = True,
) -> Tile:
    """As `choose` for one group, with more tiles for few rows. Such a launch may begin while the kernel before it ends
    where that was measured to help: in one wave of short parts."""
    if rows > FEW_ROWS:
        return choose(rows, cols, depth, units, groups, [tile for tile in tiles if tile not in FEW_TILES], by_tma)
    tile = choose(rows, cols, depth, units, groups, tiles, by_tma)
    return replace(tile, ahead=starts_early(tile, rows, cols, depth, units))


def starts_early(tile: Tile, rows: int, cols: int, depth: int, units: int) -> bool:
    """Whether the launch may begin while the kernel before it ends."""
    tiles = ceil_div(rows, tile.rows * tile.cluster) * ceil_div(cols, tile.cols)
    return tiles <= tile.slots(units) and ceil_div(ceil_div(depth, tile.parts), 64) <= AHEAD_BLOCKS


def choose_masked(
    capacity: int, cols: int, depth: int, units: int, groups: int, tiles: Sequence[Tile] = TILES, by_tma: bool = True
) -> Tile:
    """The tile for groups of up to `capacity` rows whose counts only the device knows.

    Of the tiles that some filling likes best, the one whose worst modelled loss over all fillings is the smallest.
    """
    fillings = sorted({max(int(capacity * part), 1) for part in FILLINGS})
    found = {rows: choose(rows, cols, depth, units, groups, tiles, by_tma) for rows in fillings}

    def loss(tile: Tile) -> float:
        return max(
            (1 + cycles(tile, rows, cols, depth, units, groups)) / (1 + cycles(best, rows, cols, depth, units, groups))
            for rows, best in found.items()  # 1 more: a product without columns takes none
        )

    return min(dict.fromkeys(found.values()), key=loss)
