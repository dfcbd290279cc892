"""Deep GMM products with weights that `prepack` stored as exact half-precision numbers (see deepinfer_cpu.halves).

`prepack` asks these kernels first: weights that have such a form take 2 bytes and a few rows take a third of the time;
the others get the float32 layout of kernels/deep_gmm.py. Which of both a call took is its `b_layout`.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import YES, DeviceProps, Support
from deepinfer.ops.deep_gmm.operand import PLAIN
from deepinfer.ops.deep_gmm.rows import host_bounds
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, Plan
from deepinfer_cpu import halves, matmul
from deepinfer_cpu.kernels.deep_gmm import Out


class _HalvesProduct(Kernel):
    """What the products share."""

    priority = 15
    allocates = True
    batch_invariant = True
    layout = halves.LAYOUT
    sources = ("kernels/deep_gmm_halves.py", "matmul.py", "halves.py", "product.py")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        if call["b_layout"] == halves.LAYOUT:
            return YES
        _, missing = halves.rooms()
        return Support.no(missing or f"takes weights that prepack put into layout {halves.LAYOUT!r}")

    def pack(self, data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor | None:
        return halves.pack(data) if recipe == PLAIN else None


class CpuGemmHalves(_HalvesProduct):
    """One product and its addends."""

    op = "deep_gmm.gemm"
    name = "cpu_gemm_f16_weights"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, c, bias, dtype = args[0], args[8], args[9], args[10]
        (matrix,) = halves.matrices_of(args[6], args[3])
        made = matmul.added(halves.multiply(a, matrix), c, bias)
        return (made.to(dtype) if out[0] is None else out[0].copy_(made),)


class CpuGroupedGemmHalves(_HalvesProduct):
    """A loop over groups that own rows."""

    op = "deep_gmm.grouped_gemm"
    name = "cpu_grouped_gemm_f16_weights"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, counts, starts, dtype = args[0], args[8], args[9], args[10]
        spans = host_bounds(counts, starts, a.shape[0])
        return (matmul.products(a, args[1], args[2], matmul.Weights(*args[3:8]), spans, out[0], dtype),)


class CpuMaskedGemmHalves(_HalvesProduct):
    """The first counts[g] rows of every group."""

    op = "deep_gmm.masked_grouped_gemm"
    name = "cpu_masked_gemm_f16_weights"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Out, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        a, matrices, counts, dtype = args[0], halves.matrices_of(args[6], args[3]), args[8].tolist(), args[9]
        if out[0] is None and counts and min(counts) >= a.shape[1]:
            made = [halves.multiply(*part) for part in zip(a.unbind(0), matrices, strict=True)]
            return (torch.stack(made).to(dtype),)
        result = torch.zeros((*a.shape[:2], args[3].shape[1]), dtype=dtype) if out[0] is None else out[0]
        for g, count in enumerate(counts):
            rows = min(count, a.shape[1])
            if rows > 0:
                result[g, :rows] = halves.multiply(a[g, :rows], matrices[g])
        return (result,)


KERNELS: list[Kernel] = [CpuGemmHalves(), CpuGroupedGemmHalves(), CpuMaskedGemmHalves()]
