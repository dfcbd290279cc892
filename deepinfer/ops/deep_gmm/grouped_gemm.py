"""Contract of `deep_gmm.grouped_gemm`: every group of rows times its own weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.ops.deep_gmm import accuracy, grouped, grouped_cases, operand, portable, rows
from deepinfer.ops.deep_gmm.gemm import OPERANDS, check_operands, operand_bytes
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class GroupedGemm(OpSpec):
    """D[m] = A[m] x B[g]^T for every row m of group g; A [M, K], B [G, N, K], D [M, N].

    Group g is rows [starts[g], starts[g] + counts[g]); both are int32 | int64 [G] on the device and never read on the
    host of an accelerator. Without `starts` the groups lie one behind another from row 0. Any sizes, 0 included, any
    order, no alignment; gaps between groups are allowed. A count below 0 counts as 0, and a group is cut to [0, M):
    rows outside A are never touched. A row of no group is not defined: it keeps its bytes in a caller's `out`, and
    whatever A holds there does not matter. Groups must not overlap: a row of two groups has no defined value
    (`validate=True` raises for overlaps, negative counts and rows outside [0, M)). Dtypes, recipes, rounding: as
    `deep_gmm.gemm`.
    """

    name = "deep_gmm.grouped_gemm"
    params = (*OPERANDS, Param("counts"), Param("starts", Kind.OPT_TENSOR), Param("out_dtype", Kind.DTYPE))
    returns = ("d",)

    def check(self, call: Call) -> None:
        check_operands(self.name, call, a_letters="[M,K]", b_letters="[G,N,K]")
        rows.check(self.name, call["counts"], call["starts"], call["b"].shape[0])

    def check_values(self, args: Args) -> None:
        rows.check_values(self.name, args["counts"], args["starts"], args["a"].shape[0])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        a = call["a"]
        return (TensorMeta.dense((a.shape[0], call["b"].shape[1]), call["out_dtype"], a.device),)

    def reference(self, args: Args) -> Tensors:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        d = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.float64)
        for g, low, high in rows.host_bounds(args["counts"], args["starts"], a.shape[0]):
            d[low:high] = a[low:high] @ b[g].t()
        return (d,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        operands = (args["a"], args["a_scale"], args["a_recipe"], args["b"], args["b_scale"], args["b_recipe"])
        return (portable.grouped(*operands, args["counts"], args["starts"], args["out_dtype"], out[0]),)

    def cost(self, call: Call) -> Cost:
        a, b = call["a"], call["b"]
        depth = operand.shape_of(b, call["b_recipe"])[-1]
        written = self.outputs(call)[0].nbytes + call["counts"].nbytes
        return Cost(2.0 * a.shape[0] * b.shape[1] * depth, float(operand_bytes(call) + written))

    def cases(self) -> Iterable[Case]:
        return grouped_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return grouped_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        return accuracy.tolerance(a, b, args["b_recipe"], args["out_dtype"])

    def valid(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        return (grouped.covered(args, args["a"].shape[0]),)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return grouped.poison(args, "a", ("b",), generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return grouped.batch_variants(args, "a")
