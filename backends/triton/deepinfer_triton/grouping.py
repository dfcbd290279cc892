"""`deep_gmm.group_rows`, `deep_ep.expert_layout`, `send_plan` and `reduce` in Triton.

Bound: sorting reads the list once per group, twice (it stays in L2), and is made for short lists; reduce moves K rows
in and one out per token, with a product and a sum per value.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Call
from deepinfer_triton.kernel import (
    Program,
    TritonKernel,
    ceil_div,
    dense_outputs,
    grid_reason,
    next_power_of_two,
    result_meta,
    rows_reason,
    wide,
)

GROUP_LIMIT = 1024
LANE_LIMIT = 64
BLOCK = 1024
# Least sizes of blocks, groups, lanes and a token's channels: smaller ones are padded, which costs nothing in a program
# of 128 threads.
SHORT, GROUPS, LANES, WIDTH = 128, 32, 8, 256
SOURCES = ("deepinfer_triton/device/grouping.py",)


def _limits(groups: int, items: int) -> list[str]:
    reasons = [f"up to {GROUP_LIMIT} groups, got {groups}"] if groups > GROUP_LIMIT else []
    return reasons + ([f"fewer than 2^31 items, got {items}"] if items >= 1 << 31 else [])


class GroupRows(TritonKernel):
    """Up to 1024 groups."""

    op = "deep_gmm.group_rows"
    name = "triton_group_rows"
    sources = SOURCES
    groups = "groups"
    size = "total"
    order = "permutation"
    results: tuple[str, ...] = ("permutation", "starts", "counts")

    def refuse(self, call: Call) -> list[str]:
        return _limits(call[self.groups], call["ids"].numel) + dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        ids, groups = call["ids"], call[self.groups]
        steps = {"row_step": ids.stride[0], "lane_step": ids.stride[1] if ids.ndim == 2 else 0}
        lanes = max(ids.shape[1], 1) if ids.ndim == 2 else 1
        block = {"BLOCK": SHORT if ids.numel <= SHORT else BLOCK}
        numbers = {"lanes": lanes, **steps}
        place = {
            **numbers, self.size: ids.numel, "groups": groups, "alignment": call["alignment"],
            "capacity": result_meta(call, self.order).numel,
        }
        constants = {**block, "GROUPS": max(next_power_of_two(groups), GROUPS)}
        function = f"grouping.{self.op.partition('.')[2]}"
        return (
            Program("grouping.count", groups, ("ids", "counts"), {**numbers, "total": ids.numel}, block, general=True),
            Program(function, groups + 1, ("ids", *self.results), place, constants, general=True),
        )


class ExpertLayout(GroupRows):
    """The same order over pairs, with the row of each pair."""

    op = "deep_ep.expert_layout"
    name = "triton_expert_layout"
    groups = "experts"
    size = "items"
    order = "source"
    results = ("starts", "counts", "total", "row_of", "source")


class SendPlan(TritonKernel):
    """Up to 1024 ranks and 64 slots per token."""

    op = "deep_ep.send_plan"
    name = "triton_send_plan"
    sources = SOURCES

    def refuse(self, call: Call) -> list[str]:
        lanes = call["slots"].shape[1]
        reasons = [f"up to {LANE_LIMIT} slots per token, got {lanes}"] if lanes > LANE_LIMIT else []
        return reasons + _limits(call["ranks"], call["slots"].numel) + dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        slots, ranks = call["slots"], call["ranks"]
        tokens, lanes = slots.shape
        width = max(next_power_of_two(lanes), LANES)
        shape = {"BLOCK": max(BLOCK // width, 32), "LANES": width}
        numbers = {
            "tokens_total": tokens, "lanes": lanes, "row_step": slots.stride[0], "lane_step": slots.stride[1],
            "ranks": ranks, "per": call["slots_per_rank"],
        }
        room = {**numbers, "room": result_meta(call, "tokens").numel}
        results = ("slots", "counts", "tokens", "rank_row", "slot_counts", "slot_row")
        constants = {**shape, "RANKS": max(next_power_of_two(ranks), GROUPS)}
        return (
            Program("grouping.send_counts", ranks, ("slots", "counts", "slot_counts"), numbers, shape, general=True),
            Program("grouping.send_plan", ranks + 1, results, room, constants, general=True),
        )


class Reduce(TritonKernel):
    """Any number of slots; a fixed order of rounded products and sums."""

    op = "deep_ep.reduce"
    name = "triton_reduce"
    batch_invariant = True
    sources = SOURCES

    def refuse(self, call: Call) -> list[str]:
        reasons = rows_reason("rows", call["rows"]) + dense_outputs(call)
        reasons += rows_reason("bias", call["bias"]) if call["bias"] else []
        return reasons + grid_reason(call["index"].shape[0] * ceil_div(call["rows"].shape[1], BLOCK))

    def programs(self, call: Call) -> Sequence[Program]:
        rows, index, weights, bias = call["rows"], call["index"], call["weights"], call["bias"]
        tokens, width = index.shape[0], rows.shape[1]
        if tokens == 0 or width == 0:
            return ()
        block = min(max(next_power_of_two(width), WIDTH), BLOCK)
        tiles = ceil_div(width, block)
        numbers = {
            "count": rows.shape[0], "lanes": index.shape[1], "width": width, "tiles": tiles, "row_step": rows.stride[0],
            "index_step": index.stride[0], "index_lane": index.stride[1],
            "weight_step": weights.stride[0] if weights else 0, "bias_step": bias.stride[0] if bias else 0,
        }
        tensors, constants = ("rows", "index", "weights", "bias", "y"), {"BLOCK": block}
        general = index.stride[1] != 1 or not wide(width, numbers["row_step"], numbers["bias_step"])
        return (Program(
            "grouping.reduce", tokens * tiles, tensors, numbers, constants, fuse=False, general=general,
        ),)


KERNELS = (GroupRows(), ExpertLayout(), SendPlan(), Reduce())
