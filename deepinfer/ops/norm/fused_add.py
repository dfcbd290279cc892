"""Contract of `norm.fused_add_rms_norm`: the residual add in front of a normalisation, in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops import checks
from deepinfer.ops.norm.rms_norm import TOLERANCES, check_rows, inverse_root, row_cases
from deepinfer.registry import (
    EXACT,
    Call,
    Case,
    Cost,
    ErrorCase,
    Kind,
    OpSpec,
    Param,
    TensorMeta,
    Tolerance,
    register,
)
from deepinfer.registry.spec import Args, Tensors


@register
class FusedAddRmsNorm(OpSpec):
    """new_residual = x + residual, y = rms_norm(new_residual) * weight.

    x, residual [..., d] of one dtype (bf16 | f16 | f32), weight [d]. The sum is taken in float32 and rounded to that
    dtype: this rounded value is returned as new_residual and is what gets normalised, so that the pair equals a
    separate add followed by `norm.rms_norm`. Inputs are left as they are.
    """

    name = "norm.fused_add_rms_norm"
    params = (Param("x"), Param("residual"), Param("weight"), Param("eps", Kind.FLOAT))
    returns = ("y", "new_residual")
    host_batch_invariant = True
    in_place = (("new_residual", "residual"),)

    def check(self, call: Call) -> None:
        x, residual = call["x"], call["residual"]
        check_rows(self.name, call)
        checks.shape(self.name, "residual", residual, x.shape, "= shape of x")
        if residual.dtype != x.dtype:
            raise invalid(f"{self.name}: residual", str(residual.dtype), "must have x's dtype", nearest=str(x.dtype))

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        return (TensorMeta.dense(x.shape, x.dtype, x.device),) * 2

    def reference(self, args: Args) -> Tensors:
        x = args["x"]
        total = (x.float() + args["residual"].float()).to(x.dtype)
        wide = total.double()
        return wide * inverse_root(wide, args["eps"]) * args["weight"].double(), total

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        x, weight = args["x"], args["weight"]
        total = x + args["residual"]  # torch adds in float32 and rounds once
        wide = total.float()
        mean = wide.square().mean(-1, keepdim=True) if x.shape[-1] else wide.new_zeros((*x.shape[:-1], 1))
        y = (wide * (mean + args["eps"]).rsqrt() * weight.float()).to(x.dtype)
        return tuple(new if old is None else old.copy_(new) for new, old in zip((y, total), out, strict=True))

    def cost(self, call: Call) -> Cost:
        x, weight = call["x"], call["weight"]
        return Cost(flops=5.0 * x.numel, nbytes=4.0 * x.nbytes + weight.nbytes)

    def cases(self) -> Iterable[Case]:
        return row_cases(self.name, _make)

    def error_cases(self) -> Iterable[ErrorCase]:
        good = partial(_make, (2, 8), torch.float32)
        spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "weight-size": ({"weight": torch.ones(7)}, ("weight", "8")),
            "residual-shape": ({"residual": torch.ones(3, 8)}, ("residual", "[2, 8]")),
            "residual-dtype": ({"residual": torch.ones(2, 8).half()}, ("residual", "float32")),
            "eps": ({"eps": float("nan")}, ("eps", "nan")),
        }
        for name, (change, mentions) in spoiled.items():
            yield ErrorCase(self.name, name, partial(_spoil, good, change), InvalidArgument, mentions)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT if output == "new_residual" else TOLERANCES[args["x"].dtype]

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["x"].ndim < 2 or args["x"].shape[0] < 2:
            return []
        part = slice(1, 2)
        return [({**args, "x": args["x"][part], "residual": args["residual"][part]}, (part, part))]


def _make(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    x, residual = torch.randn(shape, generator=generator) * 3, torch.randn(shape, generator=generator) * 30
    weight = torch.rand(shape[-1], generator=generator) + 0.5
    return {"x": x.to(dtype), "residual": residual.to(dtype), "weight": weight.to(dtype), "eps": 1e-6}


def _spoil(good: Any, change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**good(generator), **change}
