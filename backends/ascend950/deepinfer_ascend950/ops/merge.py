"""Joining attention states over disjoint keys, as an op of its own and as the last step of split decoding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel, arguments, read, write

MAX_STATES = 2048  # the lse of a row's states take 32 bytes each in UB
ROW_TYPES = {torch.float32: 0, torch.bfloat16: 1}
SOURCES = ("kernels/merge_states.asc", "kernels/convert.h", "kernels/deepinfer.h")


def merge_arguments(
    outs: torch.Tensor, lses: torch.Tensor, sink: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor
) -> list[Arg]:
    """The struct MergeArgs for outs [n, l, t, h, d], lses [n, l, h, t], out [l, t, h, d] and lse [l, h, t]."""
    strides = [s * outs.element_size() for s in outs.stride()[:4]] + [s * 4 for s in lses.stride()]
    strides += [s * out.element_size() for s in out.stride()[:3]] + [s * 4 for s in lse.stride()]
    pointers = [read(outs), read(lses), read(sink), write(out), write(lse)]
    tail = (*strides, *outs.shape, ROW_TYPES[outs.dtype], ROW_TYPES[out.dtype], 0)
    return arguments(pointers, "14q8i", tail)


def _one_lead(tensor: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """`tensor` with the dimensions between the first `before` and the last `after` joined to one."""
    last = tensor.ndim - after
    return tensor.unsqueeze(before) if last == before else tensor.flatten(before, last - 1)


def _joins(meta: TensorMeta, before: int, after: int) -> bool:
    """Whether those dimensions can be joined without a copy."""
    shape, stride = meta.shape[before : len(meta.shape) - after], meta.stride[before : len(meta.stride) - after]
    long = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(long))


class MergeStates(AscendKernel):
    """`merge_states` on the vector cores."""

    op = "flash_mla.merge_states"
    name = "ascend950_merge_states"
    source = "merge_states"
    sources = SOURCES
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        outs, sink, reasons = call["outs"], call["attn_sink"], []
        if outs.shape[0] > MAX_STATES:
            reasons.append(f"outs: {outs.shape[0]} states, at most {MAX_STATES} fit a vector core's memory")
        given = [] if call.out is None else [("out", call.out[0], 0, 3), ("out", call.out[1], 0, 2)]
        for name, meta, before, after in [("outs", outs, 1, 3), ("lses", call["lses"], 1, 2), *given]:
            if not _joins(meta, before, after):
                reasons.append(f"{name}: leading dimensions cannot be joined")
        for name, meta in [("outs", outs), *[(n, m) for n, m, _, after in given if after == 3]]:
            if meta.shape[-1] > 1 and meta.stride[-1] != 1:
                reasons.append(f"{name}: a row is not contiguous")
        if sink is not None and sink.shape[0] > 1 and sink.stride[0] != 1:
            reasons.append("attn_sink: not contiguous")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "merge_states"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        outs, lses, sink = args
        if out[1].numel() == 0:
            return
        outs, lses = _one_lead(outs, 1, 3), _one_lead(lses, 1, 2)
        packed = merge_arguments(outs, lses, sink, _one_lead(out[0], 0, 3), _one_lead(out[1], 0, 2))
        plan.state.launch(stream, out[1].numel(), packed)


KERNELS = (MergeStates(),)
