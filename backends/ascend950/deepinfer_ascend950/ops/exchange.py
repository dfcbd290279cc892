"""Host side of the `ep_exchange` kernel: windows, and the argument block of one rank's launch.

Invariants: all ranks use one geometry and call in the same order with the same epochs (1, 2, 3, ...); a window starts
zeroed. The kernel waits for its peers, so the ranks' launches must run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.errors import invalid
from deepinfer.hal import Arg
from deepinfer.hal.driver_device import tensor_span
from deepinfer_ascend950.ops.base import arguments, read, write

MAX_BLOCKS, PLANES, LINE, MAX_RECORD = 64, 4, 64, 65536


@dataclass(frozen=True)
class Exchange:
    """Geometry of an exchange: ranks, most rows that one rank sends to another, and bytes per row of each plane."""

    size: int
    capacity: int
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.widths) <= PLANES:
            raise invalid("widths", self.widths, f"must name 1 to {PLANES} planes")
        if self.record > MAX_RECORD:
            raise invalid("widths", self.widths, f"a record must not exceed {MAX_RECORD} bytes")

    @property
    def record(self) -> int:
        """Bytes of one record: every part padded to 32."""
        return sum(-(-width // 32) * 32 for width in self.widths)

    @property
    def window_bytes(self) -> int:
        return self.size * (MAX_BLOCKS + 1) * LINE + 2 * self.size * self.capacity * self.record

    def launch_arguments(
        self,
        rank: int,
        epoch: int,
        planes: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
        index: torch.Tensor,
        counts: torch.Tensor,
        windows: Sequence[torch.Tensor],
        table: torch.Tensor,
        out_counts: torch.Tensor,
    ) -> list[Arg]:
        """Arguments of rank `rank`. Planes are uint8 [n, width]; `table` holds the windows' addresses (int64)."""
        pad = [None] * (PLANES - len(planes))
        pointers = [
            *(read(x) for x in (*planes, *pad)),
            *(write(x) for x in (*out, *pad)),
            read(index),
            read(counts),
            read(table),
            write(out_counts),
        ]
        rows = [x.stride(0) for x in planes] + [0] * len(pad) + [x.stride(0) for x in out] + [0] * len(pad)
        tail = (*rows, *self.widths, *[0] * len(pad), rank, self.size, self.capacity, self.record, epoch, 0)
        # Windows are reached through the table: announced, but no parameters of their own.
        return [*arguments(pointers, "8q10i", tail), *(Arg(span=tensor_span(w)) for w in windows)]
