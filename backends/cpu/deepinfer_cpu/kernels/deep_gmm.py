"""Deep GMM products on a CPU: float32 arithmetic, weights widened once by `prepack`, counts read on the host for free.

Bytes that bound a small call: the weights of the groups that own rows (4 per element packed, 2 or 1 plain). FLOPs that
bound a large one: 2 M N K at the float32 rate.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import DeviceProps, Support
from deepinfer.ops.deep_gmm import portable
from deepinfer.ops.deep_gmm.operand import PLAIN, widen
from deepinfer.ops.deep_gmm.rows import host_bounds
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer_cpu import matmul
from deepinfer_cpu.matmul import LAYOUT, Padded, Weights, pays_to_pad

Out = tuple[torch.Tensor | None, ...]


def takes_layouts(call: Call, *names: str) -> Support:
    """Packed weights must be in this backend's layout."""
    foreign = [call[f"{n}_layout"] for n in names if call[f"{n}_layout"] not in ("", LAYOUT)]
    return Support.no(*(f"weights are packed in layout {name!r}, not {LAYOUT!r}" for name in foreign))


class CpuGemm(Kernel):
    """One float32 product, addends fused where torch can."""

    op = "deep_gmm.gemm"
    name = "cpu_gemm_f32"
    allocates = True
    layout = LAYOUT

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return takes_layouts(call, "b")

    def pack(self, data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor | None:
        return matmul.pack(data, scale, recipe)

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, c, bias, dtype = args
        if packed is not None:
            b, b_scale, b_recipe = packed, None, PLAIN
        rows, cols, depth = a.shape[0], b.shape[0], a.shape[-1]
        if not (matmul.small(rows, depth) and (b.dtype is torch.float32 or matmul.small(cols, depth))):
            result = torch.empty((rows, cols), dtype=dtype) if out[0] is None else out[0]
            return (portable.dense(a, a_scale, a_recipe, b, b_scale, b_recipe, result, c, bias),)
        left, right = widen(a, a_scale, a_recipe), widen(b, b_scale, b_recipe).t()
        direct = out[0] is not None and dtype is torch.float32 and out[0].is_contiguous()
        product = torch.mm(left, right, out=out[0]) if direct else torch.mm(left, right)
        if c is not None:
            product += c
        if bias is not None:
            product += bias
        if direct:
            return (product,)
        return (product.to(dtype) if out[0] is None else out[0].copy_(product),)


class CpuGroupedGemm(Kernel):
    """Groups by a loop of products or one padded batch, whichever needs less time."""

    op = "deep_gmm.grouped_gemm"
    name = "cpu_grouped_gemm_f32"
    allocates = True
    layout = LAYOUT

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return takes_layouts(call, "b")

    def pack(self, data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor | None:
        return matmul.pack(data, scale, recipe)

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, counts, starts, dtype = args
        total, groups = a.shape[0], b.shape[0]
        spans = host_bounds(counts, starts, total)
        weights = Weights(b, b_scale, b_recipe, packed)
        dense = weights.dense()
        if dense is not None and pays_to_pad(spans, groups):
            pad = Padded(spans, groups)
            product = torch.bmm(pad.spread(widen(a, a_scale, a_recipe)), dense.transpose(1, 2))
            return (pad.collect(product, total, out[0], dtype),)
        result = torch.zeros((total, b.shape[1]), dtype=dtype) if out[0] is None else out[0]
        return (matmul.loop(a, a_scale, a_recipe, weights, spans, result),)


class CpuMaskedGemm(Kernel):
    """The first counts[g] rows of every group, nothing else."""

    op = "deep_gmm.masked_grouped_gemm"
    name = "cpu_masked_gemm_f32"
    allocates = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return takes_layouts(call, "b")

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, counts, dtype = args
        groups, capacity = a.shape[:2]
        result = torch.zeros((groups, capacity, b.shape[1]), dtype=dtype) if out[0] is None else out[0]
        weights = Weights(b, b_scale, b_recipe, packed)
        for g, count in enumerate(counts.tolist()):
            rows = min(count, capacity)
            if rows > 0:
                scale = None if a_scale is None else a_scale[g]
                matmul.loop(a[g], scale, a_recipe, weights, [(g, 0, rows)], result[g])
        return (result,)


KERNELS: list[Kernel] = [CpuGemm(), CpuGroupedGemm(), CpuMaskedGemm()]
