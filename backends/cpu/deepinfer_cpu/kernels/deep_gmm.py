"""Deep GMM products on a CPU: float32 arithmetic, weights widened once by `prepack`, counts read on the host for free.

Bytes that bound a small call: the weights of the groups that own rows (4 per element packed, 2 or 1 plain). FLOPs that
bound a large one: 2 M N K at the float32 rate.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal.device import Device, Stream
from deepinfer.hal.types import DeviceProps, Support
from deepinfer.ops.deep_gmm.operand import PLAIN, shape_of, widen
from deepinfer.ops.deep_gmm.portable import COPIED, weights_of
from deepinfer.ops.deep_gmm.rows import host_bounds
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer_cpu import matmul
from deepinfer_cpu.matmul import LAYOUT, Padded, Weights, pays_to_pad
from deepinfer_cpu.product import product, products

Out = tuple[torch.Tensor | None, ...]


def takes_layouts(call: Call, layouts: tuple[str, ...], *names: str) -> Support:
    """Packed weights must be in one of `layouts`."""
    foreign = [call[f"{n}_layout"] for n in names if call[f"{n}_layout"] not in ("", *layouts)]
    wanted = " or ".join(map(repr, layouts))
    return Support.no(*(f"weights are packed in layout {name!r}, not {wanted}" for name in foreign))


class _Float32Product(Kernel):
    """What the products share: plain weights, or weights packed in this backend's layout."""

    allocates = True
    batch_invariant = True
    layout = LAYOUT
    sources = ("kernels/deep_gmm.py", "matmul.py", "product.py")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return takes_layouts(call, (LAYOUT,), "b")

    def pack(self, data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor:
        return matmul.pack(data, scale, recipe)


class CpuGemm(_Float32Product):
    """One float32 product, addends fused where torch can."""

    op = "deep_gmm.gemm"
    name = "cpu_gemm_f32"

    def plan(self, device: Device, call: Call) -> Plan:
        """state: whether both float32 copies fit the block budget."""
        rows, cols = call["a"].shape[0], call["b"].shape[0]
        depth = shape_of(call["b"], call["b_recipe"])[-1]
        ready = call["b_packed"] is not None or call["b"].dtype is torch.float32
        return Plan(state=matmul.small(rows, depth) and (ready or matmul.small(cols, depth)))

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, c, bias, dtype = args
        if packed is not None:
            b, b_scale, b_recipe = packed, None, PLAIN
        if not plan.state:
            result = torch.empty((a.shape[0], b.shape[0]), dtype=dtype) if out[0] is None else out[0]
            weights = Weights(b[None], None if b_scale is None else b_scale[None], b_recipe, None)
            return (matmul.loop(a, a_scale, a_recipe, weights, [(0, 0, a.shape[0])], result, c, bias),)
        made = product(widen(a, a_scale, a_recipe), weights_of(b, b_scale, b_recipe, COPIED).t())
        made = matmul.added(made, c, bias)
        return (made.to(dtype) if out[0] is None else out[0].copy_(made),)


class CpuGemmBf16(Kernel):
    """torch's own bfloat16 product, where the processor has instructions for it (sums stay float32 inside)."""

    op = "deep_gmm.gemm"
    name = "cpu_gemm_bf16"
    priority = 20
    allocates = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = [] if matmul.has_bf16_products() else ["the processor has no bfloat16 products (AVX-512 BF16, AMX)"]
        if call["a"].dtype is not torch.bfloat16 or call["out_dtype"] is not torch.bfloat16:
            reasons.append(f"takes bfloat16 in and out, not {call['a'].dtype} -> {call['out_dtype']}")
        if call["c"] is not None or call["bias"] is not None:
            reasons.append("adds neither C nor bias")
        return Support(tuple(reasons))

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        product = torch.mm(args[0], args[3].t())
        return (product if out[0] is None else out[0].copy_(product),)


class CpuGroupedGemm(_Float32Product):
    """Groups by a loop of products or one padded batch, whichever needs less time."""

    op = "deep_gmm.grouped_gemm"
    name = "cpu_grouped_gemm_f32"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, counts, starts, dtype = args
        total, groups = a.shape[0], b.shape[0]
        spans = host_bounds(counts, starts, total)
        weights = Weights(b, b_scale, b_recipe, packed).widened(len(spans))
        dense = weights.dense()
        if dense is not None and pays_to_pad(spans, groups):
            pad = Padded(spans, groups)
            made = products(pad.spread(widen(a, a_scale, a_recipe)), dense.transpose(1, 2))
            return (pad.collect(made, total, out[0], dtype),)
        return (matmul.products(a, a_scale, a_recipe, weights, spans, out[0], dtype),)


class CpuMaskedGemm(_Float32Product):
    """The first counts[g] rows of every group: one batched product where all groups are full, else a loop."""

    op = "deep_gmm.masked_grouped_gemm"
    name = "cpu_masked_gemm_f32"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, a_scale, a_recipe, b, b_scale, b_recipe, packed, _, counts, dtype = args
        groups, capacity = a.shape[:2]
        listed = counts.tolist()
        weights = Weights(b, b_scale, b_recipe, packed).widened(sum(count > 0 for count in listed))
        dense = weights.dense()
        if dense is not None and groups and min(listed) >= capacity and matmul.small(groups * capacity, a.shape[2]):
            made = products(widen(a, a_scale, a_recipe), dense.transpose(1, 2))
            return (made.to(dtype) if out[0] is None else out[0].copy_(made),)
        result = torch.zeros((groups, capacity, b.shape[1]), dtype=dtype) if out[0] is None else out[0]
        for g, count in enumerate(listed):
            rows = min(count, capacity)
            if rows > 0:
                scale = None if a_scale is None else a_scale[g]
                matmul.loop(a[g], scale, a_recipe, weights, [(g, 0, rows)], result[g])
        return (result,)


KERNELS: list[Kernel] = [CpuGemmBf16(), CpuGemm(), CpuGroupedGemm(), CpuMaskedGemm()]
