"""Operands that TMA cannot walk are copied to rows that it can, into the workspace of the call (pack_rows.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Arg, Executable, Stream
from deepinfer.hal.driver_device import tensor_span
from deepinfer.registry import TensorMeta
from deepinfer_cuda.kernels.base import Unit
from deepinfer_cuda.kernels.gemm_tiles import ceil_div

HEADER = "kernels/pack_rows.cuh"
UNIT = Unit("pack_rows_16bit", HEADER, "DI_PACK_ROWS", ("uint16_t",))
ALIGNMENT = 256  # of a packed operand in the workspace
TILE, THREADS, BLOCKS_PER_UNIT = 64, 256, 8


@dataclass(frozen=True)
class Packing:
    """Where an operand of shape [.., rows, cols] lies in the workspace once packed: `pitch` elements between rows."""

    offset: int
    shape: tuple[int, ...]
    pitch: int

    @staticmethod
    def after(offset: int, meta: TensorMeta) -> Packing:
        """The first place at or behind byte `offset`."""
        per_row = 16 // meta.dtype.itemsize
        return Packing(ceil_div(offset, ALIGNMENT) * ALIGNMENT, meta.shape, ceil_div(meta.shape[-1], per_row) * per_row)

    def end(self, itemsize: int) -> int:
        """Bytes of workspace up to its end."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return self.offset + rows * self.pitch * itemsize

    def view(self, workspace: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[.., rows, pitch] in the workspace; the operand is its first columns."""
        raw = workspace[self.offset : self.end(dtype.itemsize)].view(dtype)
        return raw.view(*self.shape[:-1], self.pitch)


def prepare(code: Executable, device: Any, source: torch.Tensor, packed: torch.Tensor) -> Callable[[Stream], None]:
    """The launch that fills `packed` ([.., rows, pitch], see `Packing.view`) from `source`."""
    slabs = source.shape[0] if source.ndim == 3 else 1
    rows, cols = source.shape[-2:]
    steps = (source.stride(0) if source.ndim == 3 else 0, *source.stride()[-2:])
    pitch = packed.shape[-1]
    problem = struct.pack("<QQ3q4I", source.data_ptr(), packed.data_ptr(), *steps, slabs, rows, cols, pitch)
    spans = (tensor_span(source, False), tensor_span(packed, True))
    args = [Arg(problem), *(Arg(span=span) for span in spans)]
    tiles = slabs * ceil_div(rows, TILE) * ceil_div(cols, TILE)
    blocks = min(tiles, device.props.compute_units * BLOCKS_PER_UNIT)
    return code.prepare(UNIT.symbol, (blocks, 1, 1), (THREADS, 1, 1), args)
