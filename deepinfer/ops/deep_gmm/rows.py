"""Which rows a group owns. The one place that gives `starts` and `counts` their meaning, out-of-range values included.

Group g is rows [starts[g], starts[g] + counts[g]) cut to [0, M); a count below 0 is 0. Without `starts` the groups lie
one behind another from row 0. Sums are 64-bit, and a start is cut to [-2^62, M] before a count is added: no wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.registry import TensorMeta

_FAR = 1 << 62


@dataclass(frozen=True)
class Bounds:
    """First row and end of each group, int64 [G], 0 <= low <= high <= M."""

    low: torch.Tensor
    high: torch.Tensor


def bounds(counts: torch.Tensor, starts: torch.Tensor | None, total: int) -> Bounds:
    """The rows of each group, computed on the device."""
    size = counts.long().clamp(0, total)
    if starts is None:
        begin = size.cumsum(0) - size
    else:
        begin = starts.long().clamp(-_FAR, total)
        size = counts.long().clamp(0, _FAR)
    low = begin.clamp(0, total)
    return Bounds(low, torch.maximum((begin + size).clamp(0, total), low))


def host_bounds(counts: torch.Tensor, starts: torch.Tensor | None, total: int) -> list[tuple[int, int, int]]:
    """(group, first row, end) of the groups that own rows, read on the host: for devices whose memory is the host's."""
    found: list[tuple[int, int, int]] = []
    begin = 0
    offsets = None if starts is None else starts.tolist()
    for g, count in enumerate(counts.tolist()):
        if offsets is not None:
            begin = offsets[g]
        end = begin + max(count, 0)
        if end > 0 and begin < total and count > 0:
            found.append((g, max(begin, 0), min(end, total)))
        begin = end
    return found


def gapless(spans: list[tuple[int, int, int]], total: int) -> bool:
    """Whether the spans of `host_bounds` cover [0, total) in order, each row once."""
    position = 0
    for _, low, high in spans:
        if low != position:
            return False
        position = high
    return position == total > 0


def owners(counts: torch.Tensor, starts: torch.Tensor | None, total: int) -> torch.Tensor:
    """Number of groups that own each row, int64 [M]."""
    limits = bounds(counts, starts, total)
    row = torch.arange(total, device=counts.device)
    return ((row[:, None] >= limits.low) & (row[:, None] < limits.high)).sum(1)


def check(op: str, counts: TensorMeta, starts: TensorMeta | None, groups: int) -> None:
    """`counts` and `starts` are index vectors [G]."""
    checks.dtype(op, "counts", counts, checks.INDEX_DTYPES)
    checks.shape(op, "counts", counts, (groups,), "[G], G = number of weight matrices")
    if starts is not None:
        checks.dtype(op, "starts", starts, checks.INDEX_DTYPES)
        checks.shape(op, "starts", starts, (groups,), "[G], G = number of weight matrices")


def check_values(op: str, counts: torch.Tensor, starts: torch.Tensor | None, total: int) -> None:
    """Every group must lie inside [0, M), and no two may share a row (reads the values)."""
    begin, end, before = 0, 0, -1
    offsets = None if starts is None else starts.tolist()
    spans: list[tuple[int, int, int]] = []
    for g, count in enumerate(counts.tolist()):
        if count < 0:
            raise invalid(f"{op}: counts[{g}]", count, "must be >= 0", nearest=0)
        begin = end if offsets is None else offsets[g]
        end = begin + count
        if count and not 0 <= begin <= end <= total:
            rule = f"rows [start, start + count) must lie in [0, {total}]"
            raise invalid(f"{op}: counts of group {g}", (begin, end), rule)
        if count:
            spans.append((begin, end, g))
    end = 0
    for first, last, g in sorted(spans):
        if first < end:
            rule = f"shares rows with group {before}, which ends at {end}"
            raise invalid(f"{op}: counts of group {g}", (first, last), rule, nearest=end)
        end, before = last, g
