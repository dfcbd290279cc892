"""Ragged rows: how a tensor of cumulative offsets cuts T rows into segments.

Invariant: whatever the offsets hold, segments lie inside the rows, do not overlap and stand in order: offsets are
clamped to [0, T] and read as their running maximum, so one that falls below its predecessors means an empty segment.
"""

from __future__ import annotations

import torch


def cut(cu: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets cu [b+1] over `total` rows -> (first row [b], number of rows [b]), int64."""
    if cu.shape[0] < 2:
        empty = torch.zeros(0, dtype=torch.int64, device=cu.device)
        return empty, empty
    edges = cu.long().clamp(0, total).cummax(0).values
    return edges[:-1], edges[1:] - edges[:-1]


def covered(cu: torch.Tensor, total: int) -> torch.Tensor:
    """bool [total]: the rows that belong to some segment."""
    rows = torch.arange(total, device=cu.device)
    if cu.shape[0] < 2:
        return torch.zeros(total, dtype=torch.bool, device=cu.device)
    edges = cu.long().clamp(0, total).cummax(0).values
    return (rows >= edges[0]) & (rows < edges[-1])
