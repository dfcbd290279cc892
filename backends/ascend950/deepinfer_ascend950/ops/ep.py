"""Expert parallelism on the device: adding a token's rows (the last step of combine)."""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal import Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.registry import Call, Plan
from deepinfer_ascend950.ops.base import AscendKernel, arguments, read, write

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Reduce(AscendKernel):
    """`deep_ep.reduce` on the vector cores, to the bit as its contract says."""

    op = "deep_ep.reduce"
    name = "ascend950_ep_reduce"
    source = "ep_reduce"
    sources = ("kernels/ep_reduce.asc", "kernels/deepinfer.h")
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = []
        for name in ("rows", "bias"):
            meta = call[name]
            if meta is not None and meta.shape[1] > 1 and meta.stride[1] != 1:
                reasons.append(f"{name}: a row is not contiguous")
        if call.out is not None and call.out[0].shape[1] > 1 and call.out[0].stride[1] != 1:
            reasons.append("out: a row is not contiguous")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "ep_reduce"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        rows, index, weights, bias, _ = args
        y = out[0]
        if y.numel() == 0:
            return
        steps = [s * index.element_size() for s in index.stride()]
        tail = (
            rows.stride(0) * rows.element_size(),
            *steps,
            weights.stride(0) * 4 if weights is not None else 0,
            bias.stride(0) * bias.element_size() if bias is not None else 0,
            y.stride(0) * y.element_size(),
            rows.shape[0],
            y.shape[0],
            index.shape[1],
            y.shape[1],
            index.element_size(),
            TYPES[rows.dtype],
            TYPES[bias.dtype] if bias is not None else 0,
            TYPES[y.dtype],
            0,
        )
        pointers = [read(rows), read(index), read(weights), read(bias), write(y)]
        plan.state.launch(stream, y.shape[0], arguments(pointers, "7q8i", tail))


KERNELS = (Reduce(),)
