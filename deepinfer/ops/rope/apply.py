"""Contract of `rope.apply`: rotate the last channels of each row by the angle of its position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.norm.rms_norm import DTYPES, TOLERANCES
from deepinfer.ops.rope import cases
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class RopeApply(OpSpec):
    """Rotate pairs of the last `width` channels; the channels before them are copied.

    x [T, h, d] or [T, d] bf16 | f16 | f32, positions [T] int32 | int64, table [P, width] float32 (cosines in the first
    half of the columns, sines in the second). Pair k of row t turns by the angle of table[positions[t]]: with
    `interleaved` the pair is channels (2k, 2k+1) of the rotated part, else (k, k + width/2). `inverse` turns back. The
    arithmetic is float32 with one rounding. A position outside [0, P) leaves its row as it is (padding rows);
    `validate` refuses it. The result has x's shape and dtype.
    """

    name = "rope.apply"
    params = (
        Param("x"), Param("positions"), Param("table"),
        Param("interleaved", Kind.BOOL), Param("inverse", Kind.BOOL), Param("width", Kind.INT),
    )
    returns = ("y",)
    host_batch_invariant = True
    in_place = (("y", "x"),)

    def check(self, call: Call) -> None:
        x, positions, table, width = call["x"], call["positions"], call["table"], call["width"]
        if x.ndim not in (2, 3):
            raise invalid(f"{self.name}: x", list(x.shape), "must have 2 or 3 dimensions [T,d] or [T,h,d]")
        checks.dtype(self.name, "x", x, DTYPES)
        checks.shape(self.name, "positions", positions, (x.shape[0],), "[T]")
        checks.dtype(self.name, "positions", positions, checks.INDEX_DTYPES)
        checks.between(self.name, "width", width, 0, x.shape[-1])
        if width % 2:
            raise invalid(f"{self.name}: width", width, "must be even", nearest=width - 1)
        checks.rank(self.name, "table", table, 2, "[P,width]")
        checks.dtype(self.name, "table", table, (torch.float32,))
        checks.dim(self.name, "table", table, 1, width, "= width")

    def check_values(self, args: Args) -> None:
        positions, limit = args["positions"], args["table"].shape[0]
        bad = ((positions < 0) | (positions >= limit)).nonzero()
        if bad.numel():
            t = int(bad[0])
            raise invalid(f"{self.name}: positions[{t}]", int(positions[t]), f"must be in [0, {limit})")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        x = call["x"]
        return (TensorMeta.dense(x.shape, x.dtype, x.device),)

    def reference(self, args: Args) -> Tensors:
        x, width, table = args["x"].double().clone(), args["width"], args["table"].double()
        half, start = width // 2, args["x"].shape[-1] - args["width"]
        for t, position in enumerate(args["positions"].tolist()):
            if not 0 <= position < table.shape[0]:
                continue
            for k in range(half):
                i, j = (2 * k, 2 * k + 1) if args["interleaved"] else (k, k + half)
                c, s = table[position, k], table[position, half + k]
                s = -s if args["inverse"] else s
                a, b = x[t, ..., start + i].clone(), x[t, ..., start + j].clone()
                x[t, ..., start + i], x[t, ..., start + j] = a * c - b * s, b * c + a * s
        return (x,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        x, width = args["x"], args["width"]
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out[0] is None else out[0]
        kept = x.shape[-1] - width
        rotated = x[..., kept:].float()
        cos, sin, inside = _angles(args, x.ndim)
        if args["interleaved"]:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            made = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = rotated[..., : width // 2], rotated[..., width // 2 :]
            made = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        made = torch.where(inside, made.to(x.dtype), x[..., kept:])  # even by 1 and 0, infinities would not survive
        y[..., :kept].copy_(x[..., :kept])
        y[..., kept:].copy_(made)
        return (y,)

    def cost(self, call: Call) -> Cost:
        x, table, width = call["x"], call["table"], call["width"]
        rows = min(x.shape[0], table.shape[0])
        rotated = x.numel // max(x.shape[-1], 1) * width
        return Cost(flops=3.0 * rotated, nbytes=2.0 * x.nbytes + 4.0 * rows * width + call["positions"].nbytes)

    def cases(self) -> Iterable[Case]:
        return cases.rope_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return cases.rope_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return TOLERANCES[args["x"].dtype]

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        """Table rows that no position names are NaN."""
        table = torch.full_like(args["table"], torch.nan)
        inside = args["positions"].long()
        inside = inside[(inside >= 0) & (inside < table.shape[0])]
        table[inside] = args["table"][inside]
        return {**args, "table": table}

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["x"].shape[0] < 2:
            return []
        part = slice(1, None)
        return [({**args, "x": args["x"][part], "positions": args["positions"][part]}, (part,))]


def _angles(args: Args, ndim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cosines and sines per row, [T, half] or [T, 1, half], and which rows have a position inside the table."""
    table, positions, half = args["table"], args["positions"], args["width"] // 2
    inside = ((positions >= 0) & (positions < table.shape[0]))[:, None]
    if table.shape[0] == 0:
        cos = sin = table.new_zeros((positions.shape[0], half))
    else:
        rows = table[positions.clamp(0, table.shape[0] - 1).long()]
        cos, sin = rows[:, :half], rows[:, half:]
    if args["inverse"]:
        sin = -sin
    return (cos[:, None], sin[:, None], inside[:, None]) if ndim == 3 else (cos, sin, inside)
