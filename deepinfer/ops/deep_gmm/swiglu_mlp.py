"""Contract of `deep_gmm.grouped_swiglu_mlp`: the experts of a mixture, gate/up product, activation, down product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_gmm import accuracy, grouped, operand, portable, rows, swiglu_cases
from deepinfer.ops.deep_gmm.gemm import check_packed
from deepinfer.ops.deep_gmm.swiglu import QUANTIZE, activate
from deepinfer.ops.deep_gmm.swiglu import quantize as quantize_act
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

# Two accumulation orders may round an intermediate to neighbouring values; a step of the intermediate's dtype, then
# of the quantiser, is what an element of the activation can move by.
ACT_STEP = {torch.float32: 2.0**-14, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9}
QUANTIZED_STEP = 2.0**-2


@register
class GroupedSwigluMlp(OpSpec):
    """y[m] = act(x[m] x w13[g]^T) x w2[g]^T for every row m of group g; x [M, K], w13 [G, 2I, K], w2 [G, H, I].

    h = x x w13^T (gate = columns [0, I), up = [I, 2I)) is summed in float32 and rounded to the middle dtype: x's dtype,
    bfloat16 for quantised x. Then in float32: gate = min(gate, limit), up = clamp(up, -limit, limit) (no limit: none),
    a = silu(gate) * up * route_weights[m]. `quantize` says how a enters the second product: "" rounds it to the middle
    dtype (w2 plain), "fp8_1x128" quantises it to e4m3 with f32 scales per 128 (w2 e4m3 128x128 or 1x128), "mxfp8" with
    UE8M0 scales per 32 (w2 e4m3 32x32 or 1x32, or e2m1 1x32), both by the rules of `quant.quantize_fp8`. y is float32
    or the middle dtype. Recipes, groups, gaps, undefined rows and `validate` as `deep_gmm.grouped_gemm`.
    """

    name = "deep_gmm.grouped_swiglu_mlp"
    params = (
        Param("x"), Param("x_scale", Kind.OPT_TENSOR), Param("x_recipe", Kind.STR),
        Param("w13"), Param("w13_scale", Kind.OPT_TENSOR), Param("w13_recipe", Kind.STR),
        Param("w13_packed", Kind.OPT_TENSOR), Param("w13_layout", Kind.STR),
        Param("w2"), Param("w2_scale", Kind.OPT_TENSOR), Param("w2_recipe", Kind.STR),
        Param("w2_packed", Kind.OPT_TENSOR), Param("w2_layout", Kind.STR),
        Param("counts"), Param("starts", Kind.OPT_TENSOR), Param("route_weights", Kind.OPT_TENSOR),
        Param("limit", Kind.OPT_FLOAT), Param("quantize", Kind.STR), Param("out_dtype", Kind.DTYPE),
    )
    returns = ("y",)

    def check(self, call: Call) -> None:
        x, w13, w2 = call["x"], call["w13"], call["w2"]
        operand.check(self.name, "x", x, call["x_scale"], call["x_recipe"], 2, "[M,K]")
        operand.check(self.name, "w13", w13, call["w13_scale"], call["w13_recipe"], 3, "[G,2I,K]")
        operand.check(self.name, "w2", w2, call["w2_scale"], call["w2_recipe"], 3, "[G,H,I]")
        operand.check_pair(self.name, x, call["x_recipe"], w13, call["w13_recipe"], "x, w13")
        _check_second(self.name, call)
        _check_sizes(self.name, call)
        operand.check_out_dtype(self.name, x, call["x_recipe"], call["out_dtype"])
        for name in ("w13", "w2"):
            check_packed(self.name, call, name)
        rows.check(self.name, call["counts"], call["starts"], w13.shape[0])
        if call["route_weights"] is not None:
            checks.dtype(self.name, "route_weights", call["route_weights"], operand.PLAIN_DTYPES)
            checks.shape(self.name, "route_weights", call["route_weights"], (x.shape[0],), "[M]")
        if call["limit"] is not None and not call["limit"] > 0:
            raise invalid(f"{self.name}: limit", call["limit"], "must be > 0, or None for no clamp")

    def check_values(self, args: Args) -> None:
        rows.check_values(self.name, args["counts"], args["starts"], args["x"].shape[0])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        return (TensorMeta.dense((x.shape[0], call["w2"].shape[1]), call["out_dtype"], x.device),)

    def reference(self, args: Args) -> Tensors:
        w2 = operand.widen_exact(args["w2"], args["w2_scale"], args["w2_recipe"])
        a = _exact_activation(args)
        y = torch.zeros((a.shape[0], w2.shape[1]), dtype=torch.float64)
        for g, low, high in rows.host_bounds(args["counts"], args["starts"], a.shape[0]):
            y[low:high] = a[low:high] @ w2[g].t()
        return (y,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        x, middle = args["x"], operand.natural_dtype(args["x"].dtype, args["x_recipe"])
        limits = (args["counts"], args["starts"])
        first = (args["w13"], args["w13_scale"], args["w13_recipe"])
        h = portable.grouped(x, args["x_scale"], args["x_recipe"], *first, *limits, middle)
        weights = args["route_weights"]
        a = activate(h.float(), args["limit"], None if weights is None else weights.float())
        recipe = QUANTIZE[args["quantize"]]
        data, scale = quantize_act(a, recipe) if args["quantize"] else (a.to(middle), None)
        second = (args["w2"], args["w2_scale"], args["w2_recipe"])
        return (portable.grouped(data, scale, recipe, *second, *limits, args["out_dtype"], out[0]),)

    def cost(self, call: Call) -> Cost:
        x, w13, w2 = call["x"], call["w13"], call["w2"]
        depth = operand.shape_of(w13, call["w13_recipe"])[-1]
        names = ("x", "x_scale", "w13", "w13_scale", "w2", "w2_scale", "counts", "route_weights")
        nbytes = sum(call[name].nbytes for name in names if call[name] is not None) + self.outputs(call)[0].nbytes
        width = w13.shape[1] // 2
        return Cost(2.0 * x.shape[0] * width * (2 * depth + w2.shape[1]), float(nbytes))

    def cases(self) -> Iterable[Case]:
        return swiglu_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return swiglu_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        a, middle = _exact_activation(args), operand.natural_dtype(args["x"].dtype, args["x_recipe"])
        w2 = operand.widen_exact(args["w2"], args["w2_scale"], args["w2_recipe"])
        step = QUANTIZED_STEP if args["quantize"] else ACT_STEP[middle]
        size = accuracy.row_norm(a) * accuracy.row_norm(w2) / math.sqrt(max(a.shape[-1], 1))
        cos = 1e-3 if args["quantize"] else 1e-10 if middle is torch.float32 else 1e-5
        return Tolerance(step * size + 1e-30, 4 * accuracy.ULP[middle], cos)

    def valid(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        return (grouped.covered(args, args["x"].shape[0]),)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return grouped.poison(args, "x", ("w13", "w2"), generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return grouped.batch_variants(args, "x")


def _check_second(op: str, call: Call) -> None:
    """The activation's form must fit w2."""
    if call["quantize"] not in QUANTIZE:
        rule = f"must be one of {tuple(QUANTIZE)} ('' = None)"
        raise invalid(f"{op}: quantize", call["quantize"], rule, nearest="'fp8_1x128'")
    recipe, wanted = QUANTIZE[call["quantize"]], call["w2_recipe"]
    if wanted not in operand.PAIRS[recipe]:
        fits = [name for name, form in QUANTIZE.items() if wanted in operand.PAIRS[form]]
        raise invalid(f"{op}: quantize", call["quantize"], f"must fit w2, which is {wanted}", fits[0] if fits else None)
    middle = operand.natural_dtype(call["x"].dtype, call["x_recipe"])
    if wanted == operand.PLAIN and call["w2"].dtype != middle:
        raise invalid(f"{op}: w2", str(call["w2"].dtype), f"dtype must be {middle}, what x gives", nearest=str(middle))


def _check_sizes(op: str, call: Call) -> None:
    x, w13, w2 = (operand.shape_of(call[name], call[f"{name}_recipe"]) for name in ("x", "w13", "w2"))
    if x[1] != w13[2]:
        raise invalid(f"{op}: x", list(x), f"K must be {w13[2]} as in w13 {list(w13)}", nearest=w13[2])
    if w13[1] % 2:
        raise invalid(f"{op}: w13.shape[1]", w13[1], "must be even: gate rows, then up rows", nearest=w13[1] + 1)
    if w2[0] != w13[0] or w2[2] != w13[1] // 2:
        raise invalid(f"{op}: w2", list(w2), f"must be [{w13[0]}, H, {w13[1] // 2}] to follow w13 {list(w13)}")


def _exact_activation(args: Args) -> torch.Tensor:
    """What enters the second product, float64 [M, I], rounded and quantised where the op says so."""
    x = operand.widen_exact(args["x"], args["x_scale"], args["x_recipe"])
    w13 = operand.widen_exact(args["w13"], args["w13_scale"], args["w13_recipe"])
    middle = operand.natural_dtype(args["x"].dtype, args["x_recipe"])
    weights = args["route_weights"]
    a = torch.zeros((x.shape[0], w13.shape[1] // 2), dtype=torch.float64)
    for g, low, high in rows.host_bounds(args["counts"], args["starts"], x.shape[0]):
        h = (x[low:high] @ w13[g].t()).to(middle).double()
        a[low:high] = activate(h, args["limit"], None if weights is None else weights[low:high].double())
    if not args["quantize"]:
        return a.to(middle).double()
    recipe = QUANTIZE[args["quantize"]]
    return operand.widen_exact(*quantize_act(a.float(), recipe), recipe)
