"""`moe.route` in CUDA C++: sigmoid scores of 128 or 256 experts, the gates of deepseek_v3 (route.cuh).

One kernel serves every architecture; other scorings and shapes are left to the Triton kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.hal.driver_device import tensor_span
from deepinfer.registry import Call, Plan
from deepinfer.registry.prepared import PreparedLaunches
from deepinfer_cuda.kernels.base import CudaKernel, Unit, load
from deepinfer_cuda.kernels.gemm import TYPES, tma_reasons
from deepinfer_cuda.kernels.gemm_tiles import ceil_div

HEADER = "kernels/route.cuh"
ARCHS = ("sm_90", "sm_100", "sm_103")
LANES = 8  # per token
TOKENS = 32 // LANES  # per warp and stage
LISTED = 32  # candidates of a token
EPS_LIMIT = 2.0**100  # beyond, the reciprocal of a sum leaves the normal numbers


@dataclass(frozen=True)
class Shape:
    """Experts per lane, warps and stages of a CTA, and CTAs on an SM."""

    per_lane: int
    warps: int
    stages: int
    blocks: int

    @property
    def unit(self) -> Unit:
        arguments = (self.per_lane, self.warps, self.stages, self.blocks)
        return Unit("route_" + "x".join(map(str, arguments)), HEADER, "DI_ROUTE", arguments)

    @property
    def shared_bytes(self) -> int:
        """Stages with barriers and counts of uses, bias twice, lists of candidates, and the number of the next tile."""
        experts = LANES * self.per_lane
        stages = self.stages * (TOKENS * experts * 4 + 8 + 4)
        return ceil_div(stages + 2 * experts * 4 + self.warps * TOKENS * LISTED + 4, 128) * 128


SHAPES = {128: Shape(16, 32, 64, 1), 256: Shape(32, 32, 42, 1)}


class Route(CudaKernel):
    """Eight lanes rank the experts of a token; four tokens to a warp."""

    op = "moe.route"
    name = "cuda_route"
    header = HEADER
    batch_invariant = True

    def units(self) -> Sequence[Unit]:
        return tuple(shape.unit for shape in SHAPES.values())

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = [] if props.arch in ARCHS else [f"needs {', '.join(ARCHS)}, the device is {props.arch}"]
        logits, groups = call["logits"], call["n_group"]
        if logits.dtype != torch.float32:
            reasons.append(f"takes float32 logits, got {logits.dtype}")
        if call["scoring"] != "sigmoid":
            reasons.append(f"scores by sigmoid, not {call['scoring']}")
        if logits.shape[1] not in SHAPES:
            reasons.append(f"takes {' or '.join(map(str, SHAPES))} experts, got {logits.shape[1]}")
        if groups not in (1, 2, 4, LANES):
            reasons.append(f"takes 1, 2, 4 or 8 groups, got {groups}")
        elif not 1 <= call["top_k"] <= min(LANES, 2 * LANES // groups * call["topk_group"]):
            reasons.append(f"chooses 1 to 8 experts, up to two per eighth that stays, got top_k = {call['top_k']}")
        if call["eps"] > EPS_LIMIT:
            reasons.append(f"takes eps up to 2^100, got {call['eps']}")
        if not all(meta.contiguous for meta in call.out or ()):
            reasons.append("writes contiguous results only")
        if logits.shape[0] >= 1 << 28:
            reasons.append(f"counts choices in 32 bits, up to 2^28 - 1 tokens, got {logits.shape[0]}")
        return Support((*reasons, *tma_reasons("logits", logits)))

    def plan(self, device: Device, call: Call) -> Plan:
        shape = SHAPES[call["logits"].shape[1]]
        return Plan(state=(PreparedLaunches(), load(device, shape.unit), device, shape))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        self.bind(plan, args, out)(stream)

    def bind(
        self, plan: Plan, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...]
    ) -> Callable[[Stream], None]:
        launches, code, device, shape = plan.state
        if args[0].shape[0] == 0:
            return _nothing
        tensors = [tensor for tensor in (args[0], args[3], *out) if tensor is not None]
        found: Callable[[Stream], None] = launches.get(tensors, lambda: prepare(code, device, shape, args, out))
        return found


def _nothing(stream: Stream) -> None:
    """The launch for no tokens."""


def prepare(
    code: Any, device: Any, shape: Shape, args: tuple[Any, ...], out: tuple[torch.Tensor | None, ...],
    dependent: bool = True,
) -> Callable[[Stream], None]:
    """The launch for the op's arguments in order: di::Route of route.cuh, and a grid that stays. `dependent`: its CTAs
    may start while the kernel before it ends; they touch memory only after it."""
    logits, top_k, _, bias, groups, kept, group_score, renormalize, scale, eps = args
    lanes = LANES // groups
    written = [tensor for tensor in out if tensor is not None]
    addresses = [tensor.data_ptr() for tensor in written]
    steps = (logits.stride(0), 0 if bias is None else bias.stride(0) * bias.element_size())
    problem = struct.pack(
        "<4Q2q7I2f4x", logits.data_ptr(), 0 if bias is None else bias.data_ptr(), *addresses, *steps,
        TYPES[torch.float32 if bias is None else bias.dtype], logits.shape[0], top_k, lanes, lanes * kept,
        group_score == "top2_sum", renormalize, scale, eps,
    )
    spans = [Arg(span=tensor_span(tensor, False)) for tensor in (logits, bias) if tensor is not None]
    spans += [Arg(span=tensor_span(tensor, True)) for tensor in written]
    tiles = ceil_div(logits.shape[0], TOKENS)
    blocks = min(tiles, device.props.compute_units * shape.blocks)
    launch: Callable[[Stream], None] = code.prepare(
        shape.unit.symbol, (blocks, 1, 1), (32 * shape.warps, 1, 1), [Arg(problem), *spans],
        smem_bytes=shape.shared_bytes, dependent=dependent,
    )
    return launch


KERNELS = (Route(),)
