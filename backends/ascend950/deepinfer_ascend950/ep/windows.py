"""Windows of an exchange: their layout, and the argument blocks of the kernels that fill and empty them.

Invariants: all ranks use one layout, that of `kernels/ep_exchange.asc`; epochs count 1, 2, 3, ... per window set; a
window starts zeroed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.hal import Arg
from deepinfer.hal.driver_device import tensor_span
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer_ascend950.ops.base import arguments, read, write

MAX_BLOCKS, PLANES, LINE, HEAD, MAX_RECORD, MAX_RANKS = 64, 4, 64, 32, 65536, 256
ROWS, BLOCKS, WORDS = 0, 1, 2  # places in a head


def padded(width: int) -> int:
    """Bytes that a part of a record takes."""
    return -(-width // 32) * 32


def record_bytes(widths: Sequence[int]) -> int:
    """Bytes of a record whose parts have these widths."""
    return sum(padded(width) for width in widths)


@dataclass(frozen=True)
class Windows:
    """Layout for `size` ranks that send each other at most `region` bytes of records in one exchange."""

    size: int
    region: int

    @staticmethod
    def of(geometry: Geometry) -> Windows:
        """Room for every dispatch and combine of a buffer."""
        lanes = max(geometry.top_k, 1)
        return Windows(
            geometry.size, geometry.max_tokens * max(dispatch_record(geometry), lanes * combine_record(geometry))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's window."""
        return 2 * self.size * (MAX_BLOCKS * LINE + HEAD * 8 + self.region)

    def push(
        self,
        rank: int,
        epoch: int,
        planes: Sequence[torch.Tensor],
        index: torch.Tensor,
        heads: torch.Tensor,
        windows: Sequence[torch.Tensor],
        table: torch.Tensor,
        fault: torch.Tensor,
    ) -> list[Arg]:
        """Arguments of ep_push. Planes are uint8 [n, width]; `table` holds the windows' addresses (int64)."""
        absent = PLANES - len(planes)
        tables = [read(index), read(heads), read(table), read(fault)]
        pointers = [*(read(x) for x in planes), *[read(None)] * absent, *tables]
        steps, widths = _planes(planes)
        packed = arguments(pointers, "4q4iq4i", (*steps, *widths, *self._window(rank, epoch, widths)))
        return [*packed, *(Arg(span=tensor_span(w)) for w in windows)]  # reached through the table: announced alone

    def wait(
        self,
        rank: int,
        epoch: int,
        window: torch.Tensor,
        arrived: torch.Tensor,
        heads: torch.Tensor,
        fault: torch.Tensor,
        polls: int,
        final: bool = False,
    ) -> list[Arg]:
        """Arguments of ep_wait. `arrived` int32 [size] starts zeroed, as do `heads` int64 [size, HEAD] when counts stay
        on the device; `fault` int32 [size + 1] starts zeroed once. `final`: whoever is missing becomes a fault."""
        pointers = [read(window), write(arrived), write(heads), write(fault)]
        return arguments(pointers, "q6i", (*self._window(rank, epoch, ()), polls, final))

    def pull(
        self, rank: int, epoch: int, window: torch.Tensor, out: Sequence[torch.Tensor], heads: torch.Tensor
    ) -> list[Arg]:
        """Arguments of ep_pull. `out`: at least one plane; rows past those that came keep their bytes."""
        absent = PLANES - len(out)
        pointers = [read(window), *(write(x) for x in out), *[read(None)] * absent, read(heads)]
        steps, widths = _planes(out)
        return arguments(pointers, "5q4iq4i", (out[0].shape[0], *steps, *widths, *self._window(rank, epoch, widths)))

    def _window(self, rank: int, epoch: int, widths: Sequence[int]) -> tuple[int, ...]:
        return self.region, rank, self.size, epoch, record_bytes(widths)


def _planes(planes: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    """(row strides, widths) of all planes, 0 for absent ones."""
    absent = [0] * (PLANES - len(planes))
    return [x.stride(0) for x in planes] + absent, [x.shape[1] for x in planes] + absent


def dispatch_record(geometry: Geometry) -> int:
    """Most bytes of a record going out: payload, scales, and slot and weight per lane."""
    return padded(geometry.payload_bytes) + 32 + padded(8 * geometry.top_k)


def combine_record(geometry: Geometry) -> int:
    """Most bytes of a record coming back: a row and its weight."""
    return padded(geometry.hidden * geometry.dtype.itemsize) + 32
