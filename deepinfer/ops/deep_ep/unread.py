"""The portable exchange where counts lie on a device and are not read: sizes that the host knows, and masks.

With sync=False every token goes to every rank, and the receiver keeps those that have a slot there; rows that come back
stand at fixed places. That moves up to R times the rows, K times as many back with reduce="slots", which is what a
host without counts can do. A transport that takes counts on the device (peer memory) sends only what is needed.

Invariants: no function here reads a value on the host; -1 marks "none" in every map of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.ops.deep_ep.rows import to_bytes


def padded_rank_row(slots: torch.Tensor, rank_row: torch.Tensor, local: int) -> torch.Tensor:
    """`rank_row` [T,K] of a send plan when each rank gets all T tokens: token t on rank r is row r * T + t."""
    tokens = slots.shape[0]
    number = slots // max(local, 1) * tokens + torch.arange(tokens, device=slots.device)[:, None]
    return torch.where(rank_row >= 0, number, -1).to(torch.int32)


def lane_rows(slots: torch.Tensor, rank_row: torch.Tensor, slot_row: torch.Tensor, local: int) -> torch.Tensor:
    """Where a slot's result stands [T,K] when a row comes back as its K lanes: K * (its row) + its lane, or -1.

    A token's row on a rank is written at its last slot there (`rank_row`); its other slots there look it up.
    """
    lanes = slots.shape[1]
    home = torch.where(slot_row >= 0, slots // max(local, 1), -1)
    same = home[:, :, None] == home[:, None, :]
    row = torch.where(same, rank_row[:, None, :], -1).amax(2) if lanes else rank_row
    place = row * lanes + torch.arange(lanes, device=slots.device)
    return torch.where(slot_row >= 0, place, -1).to(torch.int32)


def compacted(present: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the rows that are `present` [N], in order or -1 [N], and which of them stands at each place
    [capacity], or -1."""
    number = torch.where(present, present.cumsum(0) - 1, capacity)
    source = number.new_full((capacity + 1,), -1)
    source[number] = torch.arange(number.shape[0], device=number.device)
    return torch.where(present, number, -1).to(torch.int32), source[:capacity]


def used_slots(row_of: torch.Tensor, received: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per source rank the slots used here [R], and the row of each in the order (source, token, slot), padded [N * K].

    `row_of` [N,K] says where a slot's result lies or -1; `received` [R] rows came from each rank, the rest of N is -1.
    """
    used = row_of >= 0
    before = torch.nn.functional.pad(used.sum(1).cumsum(0), (1, 0))
    ends = received.long().cumsum(0)
    _, pair = compacted(used.reshape(-1), used.numel())
    rows = row_of.reshape(-1)[pair.clamp(min=0)] if used.numel() else pair
    return before[ends] - before[ends - received], rows.long()


def write_rows(
    results: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], row: torch.Tensor, inside: torch.Tensor
) -> None:
    """results[i] = parts[row[i]], zero bytes where row[i] is -1, untouched where not `inside`; all on the device."""
    for result, part in zip(results, parts, strict=True):
        if not part.shape[0] or not part.shape[1]:
            continue
        target = to_bytes(result)
        rows = to_bytes(part).index_select(0, row.clamp(min=0)).masked_fill_((row < 0)[:, None], 0)
        target.copy_(torch.where(inside[:, None], rows, target))
