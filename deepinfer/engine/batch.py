"""Per-row state of running sequences on the host, as arrays, so that a step's input is built by a few array operations.

A row belongs to one running sequence; the block table of a row is valid up to the sequence's number of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch

from deepinfer.engine.request import Sequence
from deepinfer.hal import Device
from deepinfer.models import StepInput


class BatchTable:
    """Block tables of `rows` rows with up to `blocks` blocks of `page` tokens."""

    def __init__(self, rows: int, blocks: int, page: int) -> None:
        self.page = page
        self.blocks = np.zeros((rows, max(blocks, 1)), dtype=np.int64)

    def set_blocks(self, row: int, start: int, blocks: Items[int]) -> None:
        """Enter blocks number `start`... of a row."""
        self.blocks[row, start : start + len(blocks)] = blocks

    def start(self, sequence: Sequence) -> None:
        """A sequence takes its row."""


def build_step(table: BatchTable, plan: dict[Sequence, int], device: Device, all_rows: bool) -> StepInput:
    """The model's input for `plan` (single-token sequences first).

    `all_rows` asks for the hidden states of every row; otherwise of the last row of each sequence.
    """
    sequences, counts = list(plan), np.fromiter(plan.values(), np.int64, len(plan))
    rows = np.fromiter((s.row for s in sequences), np.int64, len(sequences))
    computed = np.fromiter((s.computed for s in sequences), np.int64, len(sequences))
    decodes = int((counts == 1).sum())
    if decodes == len(sequences):
        tokens: Items[int] = [s.tokens[s.computed] for s in sequences]
        positions, token_rows, ends = computed, rows, None
    else:
        tokens = [t for s, n in plan.items() for t in s.tokens[s.computed : s.computed + n]]
        ends = np.cumsum(counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts - computed, counts)
        token_rows = np.repeat(rows, counts)
    width = _width(int((computed + counts).max()), table.page, table.blocks.shape[1])
    slots = table.blocks[token_rows, positions // table.page] * table.page + positions % table.page
    cu_q = np.concatenate([[0], np.cumsum(counts[decodes:])])
    logit_rows = np.zeros(0, np.int64) if ends is None or all_rows else ends - 1
    parts = [
        np.asarray(tokens, np.int64),
        positions,
        slots,
        table.blocks[rows, :width],
        computed + counts,
        cu_q,
        logit_rows,
    ]
    t, p, s, b, lengths, c, wanted = _to_device(parts, device)
    return StepInput(t, p, s, b, lengths, c, decodes, None if wanted.numel() == 0 else wanted)


def _width(longest: int, page: int, most: int) -> int:
    """Columns of the block table handed to the kernels: few distinct widths, so that dispatch stays cached."""
    need = -(-longest // page)
    return min(1 << (need - 1).bit_length(), most)


def _to_device(parts: list[np.ndarray], device: Device) -> list[torch.Tensor]:
    """All arrays in one transfer; each begins at a multiple of 16 bytes."""
    offsets, total = [], 0
    for part in parts:
        offsets.append(total)
        total += part.size + (part.size & 1)
    host = np.zeros(total, np.int64)
    for part, offset in zip(parts, offsets, strict=True):
        host[offset : offset + part.size] = part.reshape(-1)
    fused = device.to_device(torch.from_numpy(host))
    return [fused[o : o + p.size].view(p.shape) for p, o in zip(parts, offsets, strict=True)]
