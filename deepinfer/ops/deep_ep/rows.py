"""Rows as bytes: plain tensors and `Quantized` ones as planes for the link, and back.

Invariants: planes are uint8, two-dimensional and contiguous, one per stored tensor; the format code is equal on two
ranks exactly when their bytes mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.errors import invalid
from deepinfer.ops.deep_ep.geometry import DTYPES, Geometry
from deepinfer.ops.quantized import FORMATS, SCALE_DTYPES, Quantized

Rows = torch.Tensor | Quantized
_DATA = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.uint8}
_SCALE = {"f32": torch.float32, "ue8m0": torch.uint8, "e4m3": torch.float8_e4m3fn}


def tensors(rows: Rows) -> tuple[torch.Tensor, ...]:
    """The stored tensors of `rows`."""
    return (rows,) if isinstance(rows, torch.Tensor) else (rows.data, rows.scale)


def rebuild(like: Rows, parts: Sequence[torch.Tensor]) -> Rows:
    """Rows of the same format made of `parts`."""
    if isinstance(like, torch.Tensor):
        return parts[0]
    return Quantized(parts[0], parts[1], like.block, like.scale_dtype, like.format)


def to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """[n, c] of any dtype -> uint8 [n, c * itemsize], contiguous; no copy when it was contiguous already."""
    if tensor.dtype is torch.uint8:
        return tensor.contiguous()
    if tensor.numel() == 0:
        return tensor.new_empty((tensor.shape[0], tensor.shape[1] * tensor.dtype.itemsize), dtype=torch.uint8)
    return tensor.contiguous().view(torch.uint8)


def from_bytes(plane: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The reverse of `to_bytes`; shares memory."""
    if dtype is torch.uint8:
        return plane
    if plane.numel() == 0:
        return plane.new_empty((plane.shape[0], plane.shape[1] // dtype.itemsize), dtype=dtype)
    return plane.view(dtype)


def format_code(rows: Rows) -> int:
    """A number for dtype or quantisation format, scale type and block width."""
    if isinstance(rows, torch.Tensor):
        return DTYPES.index(rows.dtype)
    kind = FORMATS.index(rows.format) * len(SCALE_DTYPES) + SCALE_DTYPES.index(rows.scale_dtype)
    return 100 + kind + 16 * rows.block[1]


def check(op: str, rows: object, geometry: Geometry, device: torch.device) -> Rows:
    """Raise InvalidArgument unless `rows` may be dispatched: type, shape, dtype, device, number of tokens."""
    if not isinstance(rows, torch.Tensor | Quantized):
        raise invalid(f"{op}: x", type(rows).__name__, "must be a torch.Tensor or a Quantized")
    for part, name in zip(tensors(rows), ("x", "x.scale"), strict=False):
        if not isinstance(part, torch.Tensor) or part.ndim != 2:
            got = list(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
            raise invalid(f"{op}: {name}", got, "must have 2 dimensions [T,hidden]")
        if part.device.type != device.type or (part.device.index or 0) != (device.index or 0):
            raise invalid(f"{op}: {name}", str(part.device), "must lie on the buffer's device", nearest=str(device))
    if rows.shape[1] != geometry.hidden:
        raise invalid(f"{op}: x.shape[1]", rows.shape[1], "must be the buffer's hidden", nearest=geometry.hidden)
    if isinstance(rows, torch.Tensor):
        if rows.dtype is not geometry.dtype:
            raise invalid(f"{op}: x", str(rows.dtype), "must have the buffer's dtype", nearest=str(geometry.dtype))
    else:
        _check_quantized(op, rows, geometry)
    if rows.shape[0] > geometry.max_tokens:
        rule = f"must be at most max_tokens = {geometry.max_tokens} of the buffer"
        raise invalid(f"{op}: tokens in x", rows.shape[0], rule, nearest=geometry.max_tokens)
    return rows


def _check_quantized(op: str, rows: Quantized, geometry: Geometry) -> None:
    if rows.block[0] != 1:
        raise invalid(f"{op}: x.block", rows.block, "must scale each row by itself", nearest=(1, rows.block[1]))
    for part, name, wanted in (
        (rows.data, "data", _DATA[rows.format]), (rows.scale, "scale", _SCALE[rows.scale_dtype])
    ):
        if part.dtype is not wanted:
            raise invalid(f"{op}: x.{name}", str(part.dtype), f"must be {wanted} for this format", nearest=str(wanted))
    shape = (rows.shape[0], -(-rows.shape[1] // rows.block[1]))
    if tuple(rows.scale.shape) != shape:
        raise invalid(f"{op}: x.scale", list(rows.scale.shape), f"shape must be {list(shape)}", nearest=list(shape))
    width = sum(part.shape[1] * part.dtype.itemsize for part in tensors(rows))
    if width > geometry.payload_bytes:
        rule = f"a row with its scales takes {width} bytes, the buffer's records hold {geometry.payload_bytes}"
        raise invalid(f"{op}: x.block", rows.block, rule, nearest=(1, 32))
