"""Rows of one pair of ranks cut into chunks: the sender gathers them into a ring, the receiver copies them out.

Invariant: both sides cut alike, because the cut depends only on the number of rows and the widths of the planes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.transport import split_rows


class Link(Protocol):
    """The rings of one rank, as sender and as receiver."""

    geometry: Geometry

    def free(self, peer: int) -> torch.Tensor | None:
        """The next chunk of this rank's ring at `peer`, or None while all are taken."""

    def publish(self, peer: int) -> None:
        """The chunk from `free` has been filled."""

    def arrived(self, peer: int) -> torch.Tensor | None:
        """The next chunk that `peer` has filled here, or None."""

    def consume(self, peer: int) -> None:
        """The chunk from `arrived` has been copied."""


class Send:
    """Rows for one peer, chunk by chunk."""

    def __init__(self, link: Link, peer: int, planes: tuple[torch.Tensor, ...], rows: torch.Tensor) -> None:
        self._link, self._peer, self._planes, self._rows = link, peer, planes, rows
        self._step = _rows_per_chunk(link.geometry, planes)
        self._sent = 0

    @property
    def done(self) -> bool:
        return self._sent >= self._rows.numel()

    def step(self) -> bool:
        """Send one chunk if there is one and room for it."""
        chunk = None if self.done else self._link.free(self._peer)
        if chunk is None:
            return False
        rows = self._rows[self._sent : self._sent + self._step]
        for plane, part in zip(self._planes, _parts(chunk, rows.numel(), self._planes), strict=True):
            if part.numel():
                torch.index_select(plane, 0, rows, out=part)
        self._sent += rows.numel()
        self._link.publish(self._peer)
        return True


class Take:
    """Rows from one peer, chunk by chunk."""

    def __init__(self, link: Link, peer: int, targets: list[torch.Tensor], count: int) -> None:
        self._link, self._peer, self._targets, self._count = link, peer, targets, count
        self._step = _rows_per_chunk(link.geometry, targets)
        self._taken = 0

    @property
    def done(self) -> bool:
        return self._taken >= self._count

    def step(self) -> bool:
        """Copy one chunk out if one has come."""
        chunk = None if self.done else self._link.arrived(self._peer)
        if chunk is None:
            return False
        rows = min(self._step, self._count - self._taken)
        for target, part in zip(self._targets, _parts(chunk, rows, self._targets), strict=True):
            target[self._taken : self._taken + rows].copy_(part)
        self._taken += rows
        self._link.consume(self._peer)
        return True


def _rows_per_chunk(geometry: Geometry, planes: Iterable[torch.Tensor]) -> int:
    return geometry.chunk_bytes // max(sum(plane.shape[1] for plane in planes), 1)


def _parts(chunk: torch.Tensor, rows: int, planes: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Views [rows, width] of the planes that lie one after the other in a chunk."""
    parts, begin = [], 0
    for plane in planes:
        end = begin + rows * plane.shape[1]
        parts.append(chunk[begin:end].view(rows, plane.shape[1]))
        begin = end
    return parts


def by_source(planes: tuple[torch.Tensor, ...], counts: list[int]) -> list[list[torch.Tensor]]:
    """For each source rank its slice of every plane."""
    split = [split_rows(plane, counts) for plane in planes]
    return [[parts[rank] for parts in split] for rank in range(len(counts))]
