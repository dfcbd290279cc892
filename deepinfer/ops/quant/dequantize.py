"""Contract of `quant.dequantize`: payload times scale of its block."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops.quant import cases, contract, exact
from deepinfer.ops.quant.blocks import decode_payload, decode_scale, dequantize_blocks
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
class Dequantize(OpSpec):
    """data [..., rows, cols] ("e4m3") or [..., rows, cols/2] ("e2m1") times scale [..., ceil(rows/br), ceil(cols/bc)].

    The product is rounded once to float32, then to `dtype` (f32 | bf16 | f16). f32 scales are used as stored. A NaN
    scale makes its block NaN. Exact to the bit.
    """

    name = "quant.dequantize"
    params = (
        Param("data"), Param("scale"), Param("block", Kind.INTS), Param("scale_dtype", Kind.STR),
        Param("format", Kind.STR), Param("dtype", Kind.DTYPE),
    )
    returns = ("x",)

    def check(self, call: Call) -> None:
        contract.quantized(self.name, call["data"], call["scale"], call["block"], call["scale_dtype"], call["format"])
        if call["dtype"] not in contract.INPUTS:
            rule = f"must be one of {contract.INPUTS}"
            raise invalid(f"{self.name}: dtype", str(call["dtype"]), rule, nearest="torch.float32")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        data = call["data"]
        return (TensorMeta.dense(contract.logical(data.shape, call["format"]), call["dtype"], data.device),)

    def reference(self, args: Args) -> Tensors:
        values = decode_payload(args["data"], args["format"]).double()
        scale = decode_scale(args["scale"], args["scale_dtype"]).double()
        product = values * exact.per_element(scale, args["block"], tuple(values.shape))
        return (product.float().to(args["dtype"]),)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        x = dequantize_blocks(args["data"], args["scale"], args["block"], args["scale_dtype"], args["format"])
        return contract.deliver((x.to(args["dtype"]),), out)

    def cost(self, call: Call) -> Cost:
        x = self.outputs(call)[0]
        return Cost(flops=float(x.numel), nbytes=float(call["data"].nbytes + call["scale"].nbytes + x.nbytes))

    def cases(self) -> Iterable[Case]:
        return cases.dequantize_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        good = cases.dequantize_args
        wrong = (
            ("scale-shape", {"scale": torch.ones(4, 3)}, ("scale", "[4, 2]")),
            ("scale-dtype-text", {"scale_dtype": "bf16"}, ("scale_dtype", "bf16")),
            ("scale-dtype", {"scale": torch.ones(4, 2, dtype=torch.int32)}, ("scale", "int32")),
            ("format", {"format": "e5m2"}, ("format", "e5m2")),
            ("data-dtype", {"data": torch.ones(4, 256)}, ("data", "float32")),
            ("dtype", {"dtype": torch.int8}, ("dtype", "int8")),
            ("block", {"block": (0, 128)}, ("block", "0")),
        )
        for name, change, mentions in wrong:
            yield ErrorCase(self.name, name, partial(cases.changed, good, change), InvalidArgument, mentions)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT
