"""How a matrix of blocks is cut into programs; shared by every kernel that works block by block."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.registry import TensorMeta
from deepinfer_triton.kernel import ceil_div, collapse, next_power_of_two, wide

BLOCK_LIMIT = 16384  # padded values of one block, which stay in registers
ROUND = (1, 32, 128)  # sides of padded blocks in the general form
TILE = 4096  # values per program; with 4 warps, two to four loads of 16 bytes per thread and 0.95 of copy bandwidth


@dataclass(frozen=True)
class Cut:
    """Tiling of matrices [batch, rows, cols] in blocks of br x bc (already cut to the matrix).

    A program takes blocks of `tile` values together. `general`: the form that knows nothing but the size of a block,
    for matrices without wide accesses.
    """

    batch: int
    rows: int
    cols: int
    br: int
    bc: int
    tile: int
    general: bool = False

    @property
    def grid_rows(self) -> int:
        return ceil_div(self.rows, self.br)

    @property
    def grid_cols(self) -> int:
        return ceil_div(self.cols, self.bc)

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of a block in the tile; a few sizes do for all blocks of the general form."""
        exact = next_power_of_two(self.br), next_power_of_two(self.bc)
        rounded = tuple(next(step for step in (*ROUND, size) if step >= size) for size in exact)
        fits = self.general and rounded[0] * rounded[1] <= BLOCK_LIMIT
        return (rounded[0], rounded[1]) if fits else exact

    @property
    def whole(self) -> bool:
        """No block is ragged or padded."""
        return self.padded == (self.br, self.bc) and not self.rows % self.br and not self.cols % self.bc

    @property
    def shape(self) -> tuple[int, int]:
        """(rows of blocks, columns of blocks) of one program."""
        room = max(self.tile // (self.padded[0] * self.padded[1]), 1)
        across = 1 if self.general else min(room, next_power_of_two(self.grid_cols))
        while across > 1 and self.grid_cols % across and across * 2 > self.grid_cols % across + self.grid_cols // 8:
            across //= 2
        return room // across, across

    @property
    def tiles(self) -> int:
        return ceil_div(self.grid_cols, self.shape[1])

    @property
    def programs(self) -> int:
        return ceil_div(self.batch * self.grid_rows, self.shape[0]) * self.tiles

    @property
    def numbers(self) -> dict[str, int]:
        return {
            "rows": self.rows, "cols": self.cols, "br": self.br, "bc": self.bc, "grid_rows": self.grid_rows,
            "grid_cols": self.grid_cols, "lines": self.batch * self.grid_rows, "tiles": self.tiles,
        }

    @property
    def constants(self) -> dict[str, int | bool]:
        rows, across = self.shape
        brp, bcp = self.padded
        return {
            "ROWS": rows, "CBS": across, "BRP": brp, "BCP": bcp, "BATCHED": self.general or self.batch > 1,
            "WHOLE": self.whole and not self.general,
        }

    @property
    def warps(self) -> int:
        return 4 if self.padded[0] * self.padded[1] <= TILE else 8


def cut(shape: tuple[int, ...], block: tuple[int, int], tile: int | None = None, general: bool = False) -> Cut:
    """The tiling of a matrix [..., rows, cols]."""
    batch = 1
    for size in shape[:-2]:
        batch *= size
    rows, cols = shape[-2:]
    return Cut(batch, rows, cols, min(block[0], max(rows, 1)), min(block[1], max(cols, 1)), tile or TILE, general)


def strides(meta: TensorMeta) -> tuple[int, int, int] | None:
    """(matrix, row, column) strides, or None when the leading dimensions do not collapse; 0 where there is one row."""
    outer = collapse(meta.shape[:-2], meta.stride[:-2])
    return None if outer is None else (outer[1], meta.stride[-2] if meta.shape[-2] > 1 else 0, meta.stride[-1])


def narrow(steps: tuple[int, int, int] | None, *sizes: int) -> bool:
    """Whether a matrix with these strides, and rows of `sizes`, is read or written value by value."""
    batch, row, column = steps or (0, 0, 0)
    return column != 1 or not wide(batch, row, *sizes)


def strides_reason(name: str, meta: TensorMeta) -> list[str]:
    if meta.numel == 0 or strides(meta) is not None:
        return []
    return [f"{name} needs leading dimensions that collapse to one, got {meta.shape} with {meta.stride}"]


def block_reason(found: Cut, paired: bool = False) -> list[str]:
    """Why blocks of this size do not fit; `paired`: two columns share a byte."""
    if not found.batch * found.rows * found.cols:
        return []
    brp, bcp = found.padded
    reasons = []
    if brp * bcp > BLOCK_LIMIT:
        reasons.append(f"blocks of up to {BLOCK_LIMIT} values, got {found.br}x{found.bc}")
    if paired and found.bc % 2:
        reasons.append(f"two values share a byte: blocks need an even number of columns, got {found.bc}")
    if found.batch * found.grid_rows * found.grid_cols >= 1 << 31:
        reasons.append("needs fewer than 2^31 blocks")
    return reasons
