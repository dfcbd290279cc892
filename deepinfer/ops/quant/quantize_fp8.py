"""Contract of `quant.quantize_fp8`: a matrix to e4m3 with one scale per block."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops.quant import cases, contract, exact
from deepinfer.ops.quant.blocks import grid, quantize_fp8_blocks
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

MAX_FLOOR = 1e38
SCALES = {"f32": torch.float32, "ue8m0": torch.uint8}


@register
class QuantizeFp8(OpSpec):
    """Quantise x [..., rows, cols] to e4m3 in blocks of `block` = (rows, cols), exact to the bit.

    Per block: a = max(max|x|, amax_floor), s = a / 448 in float32; "f32" stores s as it is, "ue8m0" rounds it UP to a
    power of two within [2^-127, 2^127] and stores the biased exponent byte. payload = e4m3(x / s) with the stored s:
    true float32 division, then round to nearest even, saturating at 448. The last block of a row or column may be
    ragged. A block of zeros gives zero payload and a finite non-zero scale (with amax_floor = 0: f32 scale 1; a scale
    that underflows to zero counts as such). A NaN or infinity makes its own block NaN: scale NaN (0xFF), payload 0x7F.
    """

    name = "quant.quantize_fp8"
    params = (
        Param("x"), Param("block", Kind.INTS), Param("scale_dtype", Kind.STR), Param("amax_floor", Kind.FLOAT),
    )
    returns = ("data", "scale")

    def check(self, call: Call) -> None:
        contract.matrix(self.name, call)
        if call["scale_dtype"] not in SCALES:
            raise invalid(f"{self.name}: scale_dtype", call["scale_dtype"], f"must be one of {tuple(SCALES)}", "'f32'")
        if not 0.0 <= call["amax_floor"] <= MAX_FLOOR:
            raise invalid(f"{self.name}: amax_floor", call["amax_floor"], f"must be in [0, {MAX_FLOOR}]", nearest=1e-4)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        scale = grid(x.shape, call["block"])
        return (
            TensorMeta.dense(x.shape, torch.float8_e4m3fn, x.device),
            TensorMeta.dense(scale, SCALES[call["scale_dtype"]], x.device),
        )

    def reference(self, args: Args) -> Tensors:
        x, block = args["x"].float(), args["block"]
        largest = exact.floored(exact.block_amax(x, block), args["amax_floor"])
        scale = exact.divide(largest, torch.tensor(448.0))
        if args["scale_dtype"] == "ue8m0":
            exponent = exact.power_of_two_above(scale)
            stored = exponent.to(torch.uint8)
            scale = torch.where(exponent == 255, torch.nan, 2.0 ** (exponent.double() - 127))
        else:
            scale = torch.where(scale == 0, 1.0, scale)
            stored = scale.float()
        divisor = exact.per_element(scale, block, tuple(x.shape))
        code = exact.nearest_code(exact.divide(x, divisor), exact.E4M3_GRID) | (torch.signbit(x).long() << 7)
        code = torch.where(divisor.isnan(), 0x7F, code)
        return code.to(torch.uint8).view(torch.float8_e4m3fn), stored

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        ue8m0 = args["scale_dtype"] == "ue8m0"
        found = quantize_fp8_blocks(args["x"], args["block"], ue8m0, args["amax_floor"])
        return contract.deliver(found, out)

    def cost(self, call: Call) -> Cost:
        return contract.quantizer_cost(self, call)

    def cases(self) -> Iterable[Case]:
        return cases.fp8_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        yield from cases.quantizer_errors(self.name, cases.fp8_args)
        good = cases.fp8_args
        wrong = partial(cases.changed, good, {"scale_dtype": "e4m3"})
        yield ErrorCase(self.name, "scale-dtype", wrong, InvalidArgument, ("scale_dtype", "e4m3"))
        yield ErrorCase(self.name, "floor", lambda g: good(g) | {"amax_floor": -1.0}, InvalidArgument, ("amax_floor",))

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT
