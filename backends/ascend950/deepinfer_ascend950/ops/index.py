"""Stable grouping of rows on the device: `group_rows`, `expert_layout` and `send_plan` are one counting sort.

Invariants: results depend on nothing but the ids (a block's rows stand together, blocks are placed in order); ids and
counts stay on the device.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.registry import Call, Plan
from deepinfer_ascend950.ops.base import AscendKernel, Loaded, arguments, read, write

MAX_GROUPS = 8192  # tables of 32 KiB in the memory of a vector core
MAX_PAIRS = 1 << 24
ROWS_PER_BLOCK = 256


@dataclass(frozen=True)
class Grouping:
    """One counting sort: ids [rows, lanes] by id / divisor, ids outside [0, groups * divisor) in no group."""

    groups: int
    divisor: int = 1
    alignment: int = 1
    once: bool = False


@dataclass(frozen=True)
class Tables:
    """Where results go; None = not wanted. `source` is int32 or int64 and holds -1 where no pair is."""

    counts: torch.Tensor
    starts: torch.Tensor | None = None
    total: torch.Tensor | None = None
    row_of: torch.Tensor | None = None
    source: torch.Tensor | None = None


@dataclass(frozen=True)
class Sorter:
    """Both loaded kernels, and the number of blocks they run on."""

    count: Loaded
    place: Loaded
    blocks: int

    def launch(self, stream: Stream, ids: torch.Tensor, how: Grouping, to: Tables, workspace: torch.Tensor) -> None:
        """Sort `ids` [rows, lanes]."""
        rows, lanes = ids.shape
        size, source = ids.element_size(), to.source
        tail = (
            ids.stride(0) * size,
            ids.stride(1) * size,
            max(how.divisor, 1),
            how.groups * how.divisor,
            rows,
            lanes,
            how.groups,
            pitch(how.groups),
            -(-rows // self.blocks),
            how.alignment,
            source.numel() if source is not None else 0,
            size,
            source.element_size() if source is not None else 0,
            how.once,
        )
        tables = [write(workspace), write(to.starts), write(to.counts), write(to.total), write(to.row_of)]
        packed = arguments([read(ids), *tables, write(source)], "4q10i", tail)
        self.count.launch(stream, self.blocks, packed)
        self.place.launch(stream, self.blocks, packed)


def pitch(groups: int) -> int:
    """Words of one block's row of the count table: whole registers."""
    return -(-max(groups, 1) // 64) * 64


class GroupingKernel(AscendKernel):
    """What the three ops share: limits, and how many blocks a call is worth."""

    source = "group_index"
    sources = ("kernels/group_index.asc", "kernels/deepinfer.h")

    @abc.abstractmethod
    def groups(self, call: Call) -> int:
        """Number of groups of the call."""

    def ids(self, call: Call) -> str:
        """Name of the ids' argument."""
        return "ids"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = []
        if self.groups(call) > MAX_GROUPS:
            reasons.append(f"{self.groups(call)} groups, tables hold {MAX_GROUPS}")
        if call[self.ids(call)].numel > MAX_PAIRS:
            reasons.append(f"{call[self.ids(call)].numel} ids, at most {MAX_PAIRS}")
        if call.out is not None and not all(meta.contiguous for meta in call.out):
            reasons.append("out: tables must be contiguous")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        rows = call[self.ids(call)].shape[0]
        cores = device.props.compute_units or 1
        blocks = min(cores, max(1, -(-rows // ROWS_PER_BLOCK)))
        sorter = Sorter(self.load(device, "group_count"), self.load(device, "group_place"), blocks)
        return Plan(blocks * pitch(self.groups(call)) * 4, sorter)


class GroupRows(GroupingKernel):
    """`deep_gmm.group_rows`."""

    op, name = "deep_gmm.group_rows", "ascend950_group_rows"

    def groups(self, call: Call) -> int:
        return int(call["groups"])

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        ids, groups, alignment = args
        permutation, starts, counts = out
        how, to = Grouping(groups, alignment=alignment), Tables(counts, starts, source=permutation)
        plan.state.launch(stream, ids.unsqueeze(1), how, to, workspace)


class ExpertLayout(GroupingKernel):
    """`deep_ep.expert_layout`."""

    op, name = "deep_ep.expert_layout", "ascend950_expert_layout"

    def groups(self, call: Call) -> int:
        return int(call["experts"])

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        ids, experts, alignment, _ = args
        starts, counts, total, row_of, source = out
        how, to = Grouping(experts, alignment=alignment), Tables(counts, starts, total, row_of, source)
        plan.state.launch(stream, ids, how, to, workspace)


class SendPlan(GroupingKernel):
    """`deep_ep.send_plan`: slots by rank, then the last slot of each token on a rank by rank."""

    op, name = "deep_ep.send_plan", "ascend950_send_plan"

    def groups(self, call: Call) -> int:
        return int(call["ranks"])

    def ids(self, call: Call) -> str:
        return "slots"

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        slots, ranks, per = args
        counts, tokens, rank_row, slot_counts, slot_row = out
        rows = Tables(counts, row_of=rank_row, source=tokens)
        plan.state.launch(stream, slots, Grouping(ranks, per, once=True), rows, workspace)
        by_slot = Tables(slot_counts, row_of=slot_row)
        plan.state.launch(stream, slots, Grouping(ranks, per), by_slot, workspace)


KERNELS = (GroupRows(), ExpertLayout(), SendPlan())
