"""`norm.rms_norm` in Triton: one program per row, the row in registers, statistics in float32.

Bound: bytes, one read and one write of x (the weight stays in L2); 4 FLOP per element.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal import Device, Stream
from deepinfer.registry import Call, Plan
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_triton.code import TYPES, f32, i32, i64, load, pointer
from deepinfer_triton.compile import TritonBuild
from deepinfer_triton.kernel import TritonKernel, aligned, multiples, next_power_of_two, rows_view

ROW_LIMIT = 32768


class RmsNorm(TritonKernel):
    """Rows of up to 32768 elements."""

    op = "norm.rms_norm"
    name = "triton_rms_norm"
    batch_invariant = True
    sources = ("deepinfer_triton/device/norm.py",)

    def refuse(self, call: Call) -> list[str]:
        x, weight = call["x"], call["weight"]
        reasons = []
        if rows_view(x) is None:
            reasons.append(f"x needs rows with one stride and unit stride inside, got {x.shape} with {x.stride}")
        if call.out and not call.out[0].contiguous:
            reasons.append("writes a contiguous result only")
        if not weight.contiguous:
            reasons.append("weight must be contiguous")
        if x.shape[-1] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} elements, got {x.shape[-1]}")
        if x.numel == 0:
            reasons.append("an empty x is left to the portable tier")
        return reasons

    def plan(self, device: Device, call: Call) -> Plan:
        from deepinfer_triton.device.norm import rms_norm

        x, weight = call["x"], call["weight"]
        rows, stride = rows_view(x) or (0, 0)
        d = x.shape[-1]
        block = next_power_of_two(d)
        build = TritonBuild(
            rms_norm,
            (("x", TYPES[x.dtype]), ("weight", TYPES[weight.dtype]), ("y", TYPES[x.dtype]), ("stride", "i64"),
             ("d", "i32"), ("eps", "fp32")),
            (("BLOCK", block),),
            aligned(x=x, weight=weight) | multiples(stride=stride, d=d) | {"y"},
            warps=min(max(block // 512, 1), 16),
        )
        return Plan(state=(PreparedLaunches(), load(device, build), rows, stride, d))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        launches, code, rows, stride, d = plan.state
        x, weight, eps = args
        y = out[0]
        if y is not None:
            launches.run(stream, (x, weight, y), lambda: code.prepare(
                (rows, 1, 1), [pointer(x), pointer(weight), pointer(y, True), i64(stride), i32(d), f32(eps)]
            ))


KERNELS = (RmsNorm(),)
