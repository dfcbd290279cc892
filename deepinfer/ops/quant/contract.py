"""Checks and small parts that the quantisation specs share."""

from __future__ import annotations

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.quant.blocks import grid
from deepinfer.ops.quantized import FORMATS, SCALE_DTYPES
from deepinfer.registry import Call, Cost, OpSpec, TensorMeta
from deepinfer.registry.spec import Tensors

INPUTS = (torch.float32, torch.bfloat16, torch.float16)
DATA = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.uint8}
SCALE = {"f32": torch.float32, "ue8m0": torch.uint8, "e4m3": torch.float8_e4m3fn}


MAX_BLOCK = 1 << 31


def block(op: str, value: tuple[int, ...]) -> None:
    """`block` must be two positive integers."""
    if len(value) != 2 or min(value) < 1 or max(value) > MAX_BLOCK:
        raise invalid(f"{op}: block", value, "must be two integers (rows, cols) in [1, 2^31]", nearest=(1, 128))


def matrix(op: str, call: Call) -> None:
    """x must be a matrix [..., rows, cols] of a float dtype and block legal."""
    x = call["x"]
    if x.ndim < 2:
        raise invalid(f"{op}: x", list(x.shape), "must have at least 2 dimensions [..., rows, cols]")
    checks.dtype(op, "x", x, INPUTS)
    block(op, call["block"])


def logical(shape: tuple[int, ...], element: str) -> tuple[int, ...]:
    """Shape in values of a payload of this shape."""
    return (*shape[:-1], shape[-1] * (2 if element == "e2m1" else 1))


def quantized(
    op: str, data: TensorMeta, scale: TensorMeta, size: tuple[int, ...], scale_dtype: str, element: str, arg: str = ""
) -> None:
    """Payload and scales of one quantised operand must fit together; `arg` names the operand ("a.")."""
    if element not in FORMATS:
        raise invalid(f"{op}: {arg}format", element, f"must be one of {FORMATS}", nearest="'e4m3'")
    if scale_dtype not in SCALE_DTYPES:
        raise invalid(f"{op}: {arg}scale_dtype", scale_dtype, f"must be one of {SCALE_DTYPES}", nearest="'f32'")
    block(op, size)
    if data.ndim < 2:
        raise invalid(f"{op}: {arg}data", list(data.shape), "must have at least 2 dimensions [..., rows, cols]")
    checks.dtype(op, f"{arg}data", data, (DATA[element],))
    checks.dtype(op, f"{arg}scale", scale, (SCALE[scale_dtype],))
    wanted = grid(logical(data.shape, element), (size[0], size[1]))
    checks.shape(op, f"{arg}scale", scale, wanted, f"= one per {size[0]}x{size[1]} block of {list(data.shape)}")


def deliver(found: Tensors, out: tuple[torch.Tensor | None, ...]) -> Tensors:
    """Results, copied into the caller's tensors where given."""
    return tuple(value if given is None else given.copy_(value) for given, value in zip(out, found, strict=True))


def quantizer_cost(spec: OpSpec, call: Call) -> Cost:
    """Input read once, outputs written once; a compare, a divide and a convert per element."""
    written = sum(meta.nbytes for meta in spec.outputs(call))
    return Cost(flops=3.0 * call["x"].numel, nbytes=float(call["x"].nbytes + written))
