"""Contract of `deep_gmm.masked_grouped_gemm`: fixed-capacity groups of which the first counts[g] rows are real."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_gmm import accuracy, data, grouped, masked_cases, operand, portable, rows
from deepinfer.ops.deep_gmm.gemm import OPERANDS, check_operands, operand_bytes
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class MaskedGroupedGemm(OpSpec):
    """D[g, m] = A[g, m] x B[g]^T for m < counts[g]; A [G, Mmax, K], B [G, N, K], counts int [G], D [G, Mmax, N].

    counts live on the device and are cut to [0, Mmax]; any Mmax. Rows at or past counts[g] are neither computed nor
    written, and what A holds there does not matter. `validate=True` raises for counts outside [0, Mmax]. Dtypes,
    recipes and rounding as `deep_gmm.gemm`.
    """

    name = "deep_gmm.masked_grouped_gemm"
    params = (*OPERANDS, Param("counts"), Param("out_dtype", Kind.DTYPE))
    returns = ("d",)

    def check(self, call: Call) -> None:
        check_operands(self.name, call, a_letters="[G,Mmax,K]", b_letters="[G,N,K]")
        checks.dim(self.name, "a", call["a"], 0, call["b"].shape[0], "= G of b")
        rows.check(self.name, call["counts"], None, call["b"].shape[0])

    def check_values(self, args: Args) -> None:
        limit = args["a"].shape[1]
        for g, count in enumerate(args["counts"].tolist()):
            if not 0 <= count <= limit:
                raise invalid(f"{self.name}: counts[{g}]", count, f"must be in [0, {limit}]", min(max(count, 0), limit))

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        a = call["a"]
        return (TensorMeta.dense((*a.shape[:2], call["b"].shape[1]), call["out_dtype"], a.device),)

    def reference(self, args: Args) -> Tensors:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        d = torch.zeros((*a.shape[:2], b.shape[1]), dtype=torch.float64)
        for g, count in enumerate(args["counts"].tolist()):
            rows_used = max(min(count, a.shape[1]), 0)
            d[g, :rows_used] = a[g, :rows_used] @ b[g].t()
        return (d,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        a, b, a_scale = args["a"], args["b"], args["a_scale"]
        groups, capacity = a.shape[:2]
        starts = torch.arange(groups, device=a.device) * capacity
        limits = (args["counts"].clamp(0, capacity), starts)
        flat = (a.flatten(0, 1), None if a_scale is None else a_scale.flatten(0, 1), args["a_recipe"])
        weights = (b, args["b_scale"], args["b_recipe"])
        found = portable.grouped(*flat, *weights, *limits, args["out_dtype"]).view(groups, capacity, b.shape[1])
        return (grouped.deliver(found, out[0], _valid(args)),)

    def cost(self, call: Call) -> Cost:
        a, b = call["a"], call["b"]
        depth = operand.shape_of(b, call["b_recipe"])[-1]
        written = self.outputs(call)[0].nbytes + call["counts"].nbytes
        return Cost(2.0 * a.shape[0] * a.shape[1] * b.shape[1] * depth, float(operand_bytes(call) + written))

    def cases(self) -> Iterable[Case]:
        return masked_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return masked_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        return accuracy.tolerance(a, b, args["b_recipe"], args["out_dtype"])

    def valid(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        return (_valid(args).unsqueeze(-1),)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        counts, capacity = args["counts"], args["a"].shape[1]
        found = dict(args)
        found["a"], found["a_scale"] = data.poisoned((args["a"], args["a_scale"]), ~_valid(args))
        found["b"], found["b_scale"] = data.poisoned((args["b"], args["b_scale"]), counts <= 0)
        wild = torch.where(counts <= 0, -5, torch.where(counts >= capacity, capacity + 7, counts))
        return {**found, "counts": wild.to(counts.dtype)}

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["b"].shape[0] < 2:
            return ()
        names = ("a", "a_scale", "b", "b_scale", "counts")
        picks = (slice(0, 1), slice(1, None))
        return [
            ({**args, **{name: None if args[name] is None else args[name][pick] for name in names}}, (pick,))
            for pick in picks
        ]


def _valid(args: Args) -> torch.Tensor:
    """bool [G, Mmax]: rows that count."""
    capacity = args["a"].shape[1]
    found: torch.Tensor = torch.arange(capacity, device=args["a"].device) < args["counts"].unsqueeze(-1)
    return found
