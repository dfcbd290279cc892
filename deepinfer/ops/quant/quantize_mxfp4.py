"""Contract of `quant.quantize_mxfp4`: a matrix to packed e2m1 with one power-of-two scale per block."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops.quant import cases, contract, exact
from deepinfer.ops.quant.blocks import MXFP4_FLOOR, grid, quantize_mxfp4_blocks
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
class QuantizeMxfp4(OpSpec):
    """Quantise x [..., rows, cols] (cols even) to e2m1, two values per byte, exact to the bit.

    Per block: a = max(max|x|, 6 * 2^-126), s = a / 6 rounded UP to a power of two, stored as biased exponent byte.
    Codes are the nearest of +-{0, .5, 1, 1.5, 2, 3, 4, 6} to x / s, ties to the even code; the even column lies in the
    low nibble. The last block may be ragged. Zero blocks give zero payload (signs kept). A NaN or infinity makes its
    own block NaN: scale byte 0xFF; e2m1 has no NaN, so the payload of such a block is 0.
    """

    name = "quant.quantize_mxfp4"
    params = (Param("x"), Param("block", Kind.INTS))
    returns = ("data", "scale")

    def check(self, call: Call) -> None:
        contract.matrix(self.name, call)
        cols = call["x"].shape[-1]
        if cols % 2:
            raise invalid(f"{self.name}: x.shape[-1]", cols, "must be even: two values share a byte", nearest=cols + 1)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        return (
            TensorMeta.dense((*x.shape[:-1], x.shape[-1] // 2), torch.uint8, x.device),
            TensorMeta.dense(grid(x.shape, call["block"]), torch.uint8, x.device),
        )

    def reference(self, args: Args) -> Tensors:
        x, block = args["x"].float(), args["block"]
        largest = exact.floored(exact.block_amax(x, block), MXFP4_FLOOR)
        exponent = exact.power_of_two_above(exact.divide(largest, torch.tensor(6.0)))
        scale = torch.where(exponent == 255, torch.nan, 2.0 ** (exponent.double() - 127))
        divisor = exact.per_element(scale, block, tuple(x.shape))
        code = exact.nearest_code(exact.divide(x, divisor), exact.E2M1_GRID) | (torch.signbit(x).long() << 3)
        code = torch.where(divisor.isnan(), 0, code)
        return (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8), exponent.to(torch.uint8)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return contract.deliver(quantize_mxfp4_blocks(args["x"], args["block"]), out)

    def cost(self, call: Call) -> Cost:
        return contract.quantizer_cost(self, call)

    def cases(self) -> Iterable[Case]:
        return cases.mxfp4_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        yield from cases.quantizer_errors(self.name, cases.mxfp4_args)
        odd = partial(cases.changed, cases.mxfp4_args, {"x": torch.ones(2, 7)})
        yield ErrorCase(self.name, "odd", odd, InvalidArgument, ("x", "even", "8"))

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT
