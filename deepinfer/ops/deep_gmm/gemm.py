"""Contract of `deep_gmm.gemm`: D = A x B^T (+ C) (+ bias)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_gmm import accuracy, gemm_cases, operand, portable
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

OPERANDS = (
    Param("a"), Param("a_scale", Kind.OPT_TENSOR), Param("a_recipe", Kind.STR),
    Param("b"), Param("b_scale", Kind.OPT_TENSOR), Param("b_recipe", Kind.STR),
    Param("b_packed", Kind.OPT_TENSOR), Param("b_layout", Kind.STR),
)


@register
class Gemm(OpSpec):
    """D [M, N] = A [M, K] x B [N, K]^T + C + bias, summed in float32, rounded once to `out_dtype`.

    Operands are plain (bf16 | f32 | f16, both alike) or quantised in one of these pairs (a "recipe" is format, block,
    scale type): A e4m3 1x128 f32, B e4m3 128x128 or 1x128 f32; A e4m3 1x32 UE8M0, B e4m3 32x32 or 1x32 UE8M0, or B
    e2m1 1x32 UE8M0 (two values per byte, K even). The last block along any dimension may be ragged. fp8 partial sums
    with f32 scales are promoted to float32 at least every 128 of K. float32 inputs are multiplied as float32.

    C [M, N] has out_dtype or float32, bias [N] any plain dtype; both are added in float32. out_dtype is float32 or A's
    dtype (bfloat16 for quantised operands). M = 0 or N = 0 give an empty result, K = 0 gives C + bias or zeros. Any M,
    N, K and strides. A NaN in A makes its row NaN, in B its column. `b_packed` in layout `b_layout` ("" = none) holds
    the same values as B in a form that some kernel prefers; results do not depend on it beyond the tolerance.
    """

    name = "deep_gmm.gemm"
    params = (
        *OPERANDS, Param("c", Kind.OPT_TENSOR), Param("bias", Kind.OPT_TENSOR), Param("out_dtype", Kind.DTYPE),
    )
    returns = ("d",)

    def check(self, call: Call) -> None:
        check_operands(self.name, call, a_letters="[M,K]", b_letters="[N,K]")
        rows, cols = call["a"].shape[0], call["b"].shape[0]
        c, bias = call["c"], call["bias"]
        if c is not None:
            checks.dtype(self.name, "c", c, (call["out_dtype"], torch.float32))
            checks.shape(self.name, "c", c, (rows, cols), "[M,N]")
        if bias is not None:
            checks.dtype(self.name, "bias", bias, operand.PLAIN_DTYPES)
            checks.shape(self.name, "bias", bias, (cols,), "[N]")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        a = call["a"]
        return (TensorMeta.dense((a.shape[0], call["b"].shape[0]), call["out_dtype"], a.device),)

    def reference(self, args: Args) -> Tensors:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        d = a @ b.t()
        if args["c"] is not None:
            d = d + args["c"].double()
        if args["bias"] is not None:
            d = d + args["bias"].double()
        return (d,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        a, b = args["a"], args["b"]
        result = out[0]
        if result is None:
            result = torch.empty((a.shape[0], b.shape[0]), dtype=args["out_dtype"], device=a.device)
        operands = (a, args["a_scale"], args["a_recipe"], b, args["b_scale"], args["b_recipe"])
        return (portable.dense(*operands, result, args["c"], args["bias"]),)

    def cost(self, call: Call) -> Cost:
        a, b = call["a"], call["b"]
        depth = operand.shape_of(b, call["b_recipe"])[-1]
        addends = sum(call[name].nbytes for name in ("c", "bias") if call[name] is not None)
        written = self.outputs(call)[0].nbytes
        return Cost(2.0 * a.shape[0] * b.shape[0] * depth, float(operand_bytes(call) + addends + written))

    def cases(self) -> Iterable[Case]:
        return gemm_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return gemm_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        a = operand.widen_exact(args["a"], args["a_scale"], args["a_recipe"])
        b = operand.widen_exact(args["b"], args["b_scale"], args["b_recipe"])
        addends = accuracy.largest(args["c"]) + accuracy.largest(args["bias"])
        return accuracy.tolerance(a, b, args["b_recipe"], args["out_dtype"], addends)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        rows = args["a"].shape[0]
        picks = (slice(0, 1), slice(rows // 2, rows)) if rows > 1 else ()
        found: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        for pick in picks:
            sub = {name: None if args[name] is None else args[name][pick] for name in ("a", "a_scale", "c")}
            found.append(({**args, **sub}, (pick,)))
        return found


def check_operands(op: str, call: Call, a_letters: str, b_letters: str) -> None:
    """Checks that all products of one A and one B share; ranks are the letters' count."""
    a, b = call["a"], call["b"]
    operand.check(op, "a", a, call["a_scale"], call["a_recipe"], a_letters.count(",") + 1, a_letters)
    operand.check(op, "b", b, call["b_scale"], call["b_recipe"], b_letters.count(",") + 1, b_letters)
    operand.check_pair(op, a, call["a_recipe"], b, call["b_recipe"])
    depth, wanted = (operand.shape_of(call[x], call[f"{x}_recipe"])[-1] for x in ("a", "b"))
    if depth != wanted:
        raise invalid(f"{op}: a", list(a.shape), f"K must be {wanted} as in b {list(b.shape)}", nearest=wanted)
    operand.check_out_dtype(op, a, call["a_recipe"], call["out_dtype"])
    check_packed(op, call, "b")


def check_packed(op: str, call: Call, name: str) -> None:
    """A packed form comes with the name of its layout and nothing else does."""
    packed, layout = call[f"{name}_packed"], call[f"{name}_layout"]
    if (packed is None) != (layout == ""):
        raise invalid(f"{op}: {name}_layout", layout, f"must be set if and only if {name}_packed is given")


def operand_bytes(call: Call) -> int:
    """Bytes of both operands with their scales (a packed form counts as the plain one it stands for)."""
    metas = (call[name] for name in ("a", "a_scale", "b", "b_scale"))
    return sum(meta.nbytes for meta in metas if meta is not None)
