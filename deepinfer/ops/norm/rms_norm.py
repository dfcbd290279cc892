"""Contract of `norm.rms_norm`: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import checks
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

DTYPES = (torch.bfloat16, torch.float32, torch.float16)
# One rounding of the result to its dtype: half an ulp, doubled for values that fall beside a boundary.
TOLERANCES = {
    torch.float32: Tolerance(1e-6, 1e-6, 1e-10),
    torch.bfloat16: Tolerance(1e-6, 2.0**-7, 1e-5),
    torch.float16: Tolerance(1e-6, 2.0**-10, 1e-6),
}
SHAPES = ((1, 1), (3, 7), (5, 128), (2, 3, 576), (0, 64), (4, 0), (17, 5120))

LARGEST = torch.finfo(torch.float32).max

Make = Callable[[tuple[int, ...], torch.dtype, torch.Generator], dict[str, Any]]


def check_rows(op: str, call: Call) -> None:
    """x [..., d], weight [d] and eps of every op that normalises rows."""
    x, weight = call["x"], call["weight"]
    if x.ndim < 1:
        raise InvalidArgument(f"{op}: x: got a scalar, must have at least 1 dimension [..., d]")
    checks.dtype(op, "x", x, DTYPES)
    checks.dtype(op, "weight", weight, DTYPES)
    checks.shape(op, "weight", weight, (x.shape[-1],), "[d]")
    checks.at_least(op, "eps", call["eps"], 0.0)


def inverse_root(x: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean(x^2) + eps) of float64 rows, 0 where a float32 sum overflows (references)."""
    total = x.square().sum(-1, keepdim=True)
    return torch.where(total > LARGEST, 0.0, 1 / (total / max(x.shape[-1], 1) + eps).sqrt())


def row_cases(op: str, make: Make) -> Iterator[Case]:
    """The same shapes and dtypes for every op that normalises rows."""
    for dtype in DTYPES:
        for shape in SHAPES:
            params = {"shape": "x".join(map(str, shape)), "dtype": str(dtype).removeprefix("torch.")}
            edge = {"edge"} if 0 in shape else set()
            yield Case(op, params, partial(make, shape, dtype), frozenset({"quick", *edge}))
    for dtype in (torch.float32, torch.bfloat16):
        params = {"shape": "3x64", "dtype": str(dtype).removeprefix("torch."), "data": "squares overflow"}
        yield Case(op, params, partial(_huge, make, dtype), frozenset({"quick", "edge"}))
    bench: dict[str, Any] = {"rows": 8192, "d": 5120, "dtype": "bfloat16"}
    yield Case(op, bench, partial(make, (8192, 5120), torch.bfloat16), frozenset({"bench"}))


@register
class RmsNorm(OpSpec):
    """Root-mean-square normalisation of each row.

    x [..., d] bf16 | f16 | f32, weight [d] of any of these; y has x's shape and dtype. Statistics and product are
    computed in float32 and rounded once. d = 0 or no rows give an empty result. A NaN makes its own row NaN only.
    The sum of squares is float32 as well: a finite row for which it overflows (an element of 1.9e19, say) gives 0.
    """

    name = "norm.rms_norm"
    params = (Param("x"), Param("weight"), Param("eps", Kind.FLOAT))
    returns = ("y",)
    host_batch_invariant = True

    def check(self, call: Call) -> None:
        check_rows(self.name, call)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        return (TensorMeta.dense(x.shape, x.dtype, x.device),)

    def reference(self, args: Args) -> Tensors:
        x, weight = args["x"].double(), args["weight"].double()
        return (x * inverse_root(x, args["eps"]) * weight,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        x = args["x"]
        wide = x.float()
        mean = wide.square().mean(-1, keepdim=True) if x.shape[-1] else wide.new_zeros((*x.shape[:-1], 1))
        y = (wide * (mean + args["eps"]).rsqrt() * args["weight"].float()).to(x.dtype)
        return (y if out[0] is None else out[0].copy_(y),)

    def cost(self, call: Call) -> Cost:
        x, weight = call["x"], call["weight"]
        return Cost(flops=4.0 * x.numel, nbytes=2.0 * x.nbytes + weight.nbytes)

    def cases(self) -> Iterable[Case]:
        return row_cases(self.name, _make)

    def error_cases(self) -> Iterable[ErrorCase]:
        spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "weight-size": ({"weight": torch.ones(7)}, ("weight", "8")),
            "dtype": ({"x": torch.ones(2, 8).int()}, ("x", "int32")),
            "eps": ({"eps": -1.0}, ("eps", "-1.0")),
            "not-a-tensor": ({"x": [1.0]}, ("x", "Tensor")),
        }
        for name, (change, mentions) in spoiled.items():
            yield ErrorCase(self.name, name, partial(_spoil, change), InvalidArgument, mentions)

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["x"].ndim < 2 or args["x"].shape[0] < 2:
            return []
        return [({**args, "x": args["x"][part]}, (part,)) for part in (slice(0, 1), slice(1, None))]

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return TOLERANCES[args["x"].dtype]


def _huge(make: Make, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """Three rows; the squares of the middle one are beyond float32."""
    args = make((3, 64), dtype, generator)
    args["x"][1] = torch.where(args["x"][1] > 0, 3e19, -5e19)
    return args


def _make(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    x = torch.randn(shape, generator=generator) * 3
    weight = torch.rand(shape[-1], generator=generator) + 0.5
    return {"x": x.to(dtype), "weight": weight.to(dtype), "eps": 1e-6}


def _spoil(change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**_make((2, 8), torch.float32, generator), **change}
