"""Per-row state of running sequences on the host, as arrays, so that a step's input is built by a few array operations.

A row belongs to one running sequence; the block table of a row is valid up to the sequence's number of blocks.
Whatever a step needs travels to the device in one transfer, each array on a 16-byte border.
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

    def slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Flat cache slots of tokens at `positions` of the sequences in `rows`."""
        found: np.ndarray = self.blocks[rows, positions // self.page] * self.page + positions % self.page
        return found

    def width(self, longest: int) -> int:
        """Columns of the block table handed to the kernels: few distinct widths, so that dispatch stays cached."""
        need = -(-longest // self.page)
        return min(1 << (need - 1).bit_length(), self.blocks.shape[1])

    def widths(self) -> list[int]:
        """All values that `width` can have, from the smallest."""
        most = self.blocks.shape[1]
        return [*(1 << k for k in range((most - 1).bit_length())), most]


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
    width = table.width(int((computed + counts).max()))
    slots = table.slots(token_rows, positions)
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


class PaddedStep:
    """A decode step with room for `size` sequences and `width` blocks each, in tensors that never move.

    That is what a captured graph reads. Rows without a sequence have length 0, so attention finds no key for them, and
    slot -1, so the cache is not written; their results are numbers that nobody looks at.
    """

    def __init__(self, device: Device, size: int, width: int) -> None:
        self.size, self.width = size, width
        offsets, total = _offsets([size] * 4 + [size * width, 1])
        self._host = np.zeros(total, np.int64)
        self._device = device.empty((total,), torch.int64)
        host = [self._host[start : start + count] for start, count in offsets]
        self._tokens, self._positions, self._slots, self._lengths = host[:4]
        self._blocks = host[4].reshape(size, width)
        t, p, s, lengths, blocks, cu_q = (self._device[start : start + count] for start, count in offsets)
        self.step = StepInput(t, p, s, blocks.view(size, width), lengths, cu_q, size, None)
        self.clear()

    def clear(self) -> None:
        """No sequence in any row."""
        self._host[:] = 0
        self._slots[:] = -1
        self._send()

    def fill(self, table: BatchTable, sequences: Items[Sequence]) -> None:
        """The next token of every one of up to `size` sequences; the rows behind them become padding."""
        n = len(sequences)
        rows = np.fromiter((s.row for s in sequences), np.int64, n)
        computed = np.fromiter((s.computed for s in sequences), np.int64, n)
        self._host[:] = 0
        self._tokens[:n] = [s.tokens[s.computed] for s in sequences]
        self._positions[:n] = computed
        self._slots[:n] = table.slots(rows, computed)
        self._slots[n:] = -1
        self._lengths[:n] = computed + 1
        self._blocks[:n] = table.blocks[rows, : self.width]
        self._send()

    def _send(self) -> None:
        self._device.copy_(torch.from_numpy(self._host))


def _offsets(sizes: Items[int]) -> tuple[list[tuple[int, int]], int]:
    """(first element, elements) of arrays of 64-bit integers that lie behind each other, and the sum."""
    found, total = [], 0
    for size in sizes:
        found.append((total, size))
        total += size + (size & 1)
    return found, total


def _to_device(parts: list[np.ndarray], device: Device) -> list[torch.Tensor]:
    """All arrays in one transfer."""
    offsets, total = _offsets([part.size for part in parts])
    host = np.zeros(total, np.int64)
    for part, (start, count) in zip(parts, offsets, strict=True):
        host[start : start + count] = part.reshape(-1)
    fused = device.to_device(torch.from_numpy(host))
    return [fused[start : start + count].view(p.shape) for p, (start, count) in zip(parts, offsets, strict=True)]
