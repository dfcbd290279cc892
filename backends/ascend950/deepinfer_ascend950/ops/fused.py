"""`sparse_attention_fused` as its composition: rotate, attend, rotate back and quantise, in three launches.

Invariants: the attention is the kernel of `ops.attention`; between the launches lie rotated queries (bf16 ones with
what rounding left of the rotated channels, so that logits are as exact as those of unrotated queries) and a float32
result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.registry import Call, Plan
from deepinfer_ascend950.ops.attention import ENTRIES, row_reasons
from deepinfer_ascend950.ops.attention import SOURCES as ATTENTION
from deepinfer_ascend950.ops.base import AscendKernel, Loaded, arguments, read, write
from deepinfer_ascend950.ops.mla import SPARSE, Problem, paged_pool

TURNED = 64  # channels that are rotated, the last of a row
ROW_TYPES = {torch.float32: 0, torch.bfloat16: 1}


def rotate_arguments(
    rows: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    rest: int,
) -> list[Arg]:
    """The struct RotateArgs for rows [T, h, 512] and out [T, h, 512 + rest], or codes with scales [T, h, 16]."""
    steps = [rows.stride(0) * rows.element_size(), rows.stride(1) * rows.element_size()]
    steps += [positions.stride(0) * positions.element_size(), table.stride(0) * 4]
    steps += [out.stride(0) * out.element_size(), out.stride(1) * out.element_size()]
    steps += [0, 0] if scales is None else [scales.stride(0), scales.stride(1)]
    sizes = [*rows.shape[:2], table.shape[0], positions.element_size(), ROW_TYPES[rows.dtype], rest]
    pointers = [read(rows), read(positions), read(table), write(out), write(scales)]
    return arguments(pointers, "8q6i", (*steps, *sizes))


@dataclass(frozen=True)
class State:
    """The two loaded files."""

    rotate: Loaded
    attend: Loaded


def _aligned(size: int) -> int:
    return -(-size // 256) * 256


class FusedAttention(AscendKernel):
    """Rotation, sparse attention over one or two paged pools, rotation back and quantisation."""

    op = "flash_mla.sparse_attention_fused"
    name = "ascend950_sparse_attention_composed"
    source = "rotate"
    sources = ("kernels/rotate.asc", *ATTENTION)
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        q, table, sink = call["q"], call["cos_sin"], call["attn_sink"]
        reasons = row_reasons(call, "kv_cache", "format") + row_reasons(call, "extra_kv_cache", "extra_format")
        if q.shape[1] > 1 and q.stride[1] <= 0:
            reasons.append("q: heads repeat")
        if table.stride[1] != 1:
            reasons.append("cos_sin: a row is not contiguous")
        for name, meta in [] if call.out is None else [("out", call.out[0]), ("scale", call.out[1])]:
            if meta.stride[-1] != 1:
                reasons.append(f"{name}: last stride must be 1")
        if sink is not None and sink.shape[0] > 1 and sink.stride[0] != 1:
            reasons.append("attn_sink: not contiguous")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        q = call["q"]
        tokens, heads, width = q.shape
        queries = tokens * heads * (width + _rest(q.dtype)) * q.dtype.itemsize
        rotate = self.load(device, "rotate")
        both = replace(rotate, cores=2 * rotate.cores)  # an AI core has two vector cores, a block needs one
        state = State(both, self.load_from(device, "mla_attend", ENTRIES[q.dtype]))
        return Plan(_aligned(queries) + tokens * heads * width * 4, state)

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, indices, positions, table, lengths, extra, extra_indices, extra_lengths, sink, *last = args
        name, extra_name, scale = last
        codes, scales, lse = out
        if codes.numel() == 0:
            return
        tokens, heads, width = q.shape
        rest = _rest(q.dtype)
        queries = tokens * heads * (width + rest) * q.element_size()
        turned = workspace[:queries].view(q.dtype).view(tokens, heads, width + rest)
        result = workspace[_aligned(queries) :].view(torch.float32)[: tokens * heads * width].view(tokens, heads, width)
        state, groups = plan.state, tokens * -(-heads // 16)
        state.rotate.launch(stream, groups, rotate_arguments(q, positions, table, turned, None, rest))
        pools = [paged_pool(cache, name, indices.unsqueeze(1), lengths, indices.shape[1])]
        if extra is not None:
            pools.append(
                paged_pool(extra, extra_name, extra_indices.unsqueeze(1), extra_lengths, extra_indices.shape[1])
            )
        problem = Problem(
            turned.unsqueeze(1), tuple(pools), result.unsqueeze(1), lse.t().unsqueeze(-1), SPARSE, scale, sink,
            rest=rest,
        )  # fmt: skip
        state.attend.launch(stream, problem.jobs, problem.pack())
        state.rotate.launch(stream, groups, rotate_arguments(result, positions, table, codes, scales, 0))


def _rest(dtype: torch.dtype) -> int:
    """Channels that a rotated query has more: float32 ones need none."""
    return TURNED if dtype is torch.bfloat16 else 0


KERNELS = (FusedAttention(),)
