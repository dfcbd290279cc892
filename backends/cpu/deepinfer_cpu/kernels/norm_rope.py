"""Normalisation and rotation in float32 with few torch calls: in a decode step of a small model each call costs as much
as its arithmetic.

Rotation of interleaved pairs is one product of complex numbers: pair (a, b) times cos + i sin. Positions are read on
the host, where that is free; one outside the table sends the call to the portable tier, which copies such rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import YES, DeviceProps, Support
from deepinfer.registry import get_spec
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, Plan

LANES = 8  # complex numbers of two AVX2 vectors; torch multiplies what is left over by other instructions
SERIAL = 32767  # elements up to which torch uses one thread (its grain size is 32768)
Out = tuple[torch.Tensor | None, ...]


@lru_cache(maxsize=256)
def _constants(width: int, eps: float) -> tuple[torch.Tensor, ...]:
    """1 / width and eps as float32 tensors, whatever torch's default dtype: a Python number takes 2 us longer."""
    with torch.inference_mode(False):
        return torch.tensor((1.0 / width, eps), dtype=torch.float32, device="cpu").unbind(0)


def normalised(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight for rows [..., K], in fewer and cheaper calls than torch.rms_norm makes."""
    share, floor = _constants(x.shape[-1], eps)
    return (x * x.square().sum(-1, keepdim=True).mul_(share).add_(floor).rsqrt_()).mul_(weight)


class _Float32Rows(Kernel):
    """Takes float32 rows that are not empty and short enough for one thread."""

    allocates = True
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        x, weight = call["x"], call["weight"]
        if x.dtype is not torch.float32 or weight.dtype is not torch.float32:
            return Support.no("x and weight must be float32")
        if x.shape[-1] > SERIAL:  # torch's threads share the sum of one such row, but not that of a row in a batch
            return Support.no(f"rows have {x.shape[-1]} elements: the bits of more than {SERIAL} depend on the batch")
        return YES if x.shape[-1] else Support.no("rows are empty")


class CpuRmsNorm(_Float32Rows):
    """norm.rms_norm of float32 rows."""

    op = "norm.rms_norm"
    name = "cpu_rms_norm_f32"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        x, weight, eps = args
        y = normalised(x, weight, eps)
        return (y if out[0] is None else out[0].copy_(y),)


class CpuFusedAddRmsNorm(_Float32Rows):
    """norm.fused_add_rms_norm of float32 rows."""

    op = "norm.fused_add_rms_norm"
    name = "cpu_fused_add_rms_norm_f32"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        x, residual, weight, eps = args
        total = x + residual
        y = normalised(total, weight, eps)
        if out[0] is None or out[1] is None:
            return y, total
        return out[0].copy_(y), out[1].copy_(total)


class CpuRope(Kernel):
    """rope.apply to interleaved pairs of whole contiguous float32 rows."""

    op = "rope.apply"
    name = "cpu_rope_complex_f32"
    allocates = True
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        x, table = call["x"], call["table"]
        reasons = []
        if x.dtype is not torch.float32 or not x.contiguous:
            reasons.append("x must be float32 and contiguous")
        if not call["interleaved"] or call["width"] != x.shape[-1] or not call["width"]:
            reasons.append("pairs must be interleaved and fill the row")
        if call["width"] % (2 * LANES):
            reasons.append(f"rows must be multiples of {2 * LANES} channels, because left-over pairs round differently")
        if table.shape[0] == 0 or x.shape[0] == 0:
            reasons.append("the table or x is empty")
        return Support.no(*reasons) if reasons else YES

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        x, positions, table, _, inverse, width = args
        low, high = torch.aminmax(positions)
        if int(low) < 0 or int(high) >= table.shape[0]:
            spec = get_spec(self.op)
            return spec.portable(dict(zip((param.name for param in spec.params), args, strict=True)), out)
        rows, half = table.index_select(0, positions), width // 2
        turn = torch.complex(rows[:, :half], rows[:, half:])
        turn = turn.conj() if inverse else turn
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], half, 2))
        made = torch.view_as_real(_turned(pairs, turn[:, None] if x.ndim == 3 else turn)).view(x.shape)
        return (made if out[0] is None else out[0].copy_(made),)


def _turned(pairs: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """pairs * turn, both complex [T, ...], in parts that torch gives to one thread: it cuts larger ones anywhere."""
    rows = max(SERIAL // max(pairs[0].numel(), 1), 1)
    if pairs.shape[0] <= rows:
        return pairs * turn
    made = torch.empty_like(pairs)
    for first in range(0, pairs.shape[0], rows):
        part = slice(first, first + rows)
        torch.mul(pairs[part], turn[part], out=made[part])
    return made


KERNELS: list[Kernel] = [CpuRmsNorm(), CpuFusedAddRmsNorm(), CpuRope()]
