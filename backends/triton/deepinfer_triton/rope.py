"""`rope.apply` in Triton: rows of several heads per program; the table's rows stay in L1.

Bound: bytes, one read and one write of x; 3 FLOP per rotated channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Call, TensorMeta
from deepinfer_triton.kernel import Program, TritonKernel, ceil_div, next_power_of_two, result_meta, wide

ROW_LIMIT = 8192
TILE = 4096
PAD = 32  # least channels of a part in the general form


def _steps(meta: TensorMeta) -> tuple[int, int]:
    """Strides of token and head."""
    return (meta.stride[0], meta.stride[1]) if meta.ndim == 3 else (meta.stride[0], 0)


class RopeApply(TritonKernel):
    """Rows of up to 8192 channels; any token and head strides, in place too."""

    op = "rope.apply"
    name = "triton_rope"
    batch_invariant = True
    sources = ("deepinfer_triton/device/rope.py",)

    def refuse(self, call: Call) -> list[str]:
        x, y, table = call["x"], result_meta(call, "y"), call["table"]
        reasons = [
            f"{name} needs unit stride in its last dimension, got {meta.stride[-1]}"
            for name, meta in (("x", x), ("y", y), ("table", table)) if meta.shape[-1] > 1 and meta.stride[-1] != 1
        ]
        if x.shape[-1] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} channels, got {x.shape[-1]}")
        return reasons

    def programs(self, call: Call) -> Sequence[Program]:
        x, y, width = call["x"], result_meta(call, "y"), call["width"]
        if x.numel == 0:
            return ()
        heads, kept = (x.shape[1] if x.ndim == 3 else 1), x.shape[-1] - width
        (xt, xh), (yt, yh) = _steps(x), _steps(y)
        count = x.shape[0] * heads
        numbers = {
            "xt": xt, "xh": xh, "yt": yt, "yh": yh, "rows": count, "kept": kept, "half": width // 2,
            "limit": call["table"].shape[0], "table_step": call["table"].stride[0],
            "position_step": call["positions"].stride[0],
        }
        general = not wide(xt, xh, yt, yh, kept, width // 2, numbers["table_step"])
        facts = {"heads": heads, "inverse": int(call["inverse"])}
        if general:
            numbers |= facts
            parts = {"KEPT": max(next_power_of_two(kept), PAD), "HALF": max(next_power_of_two(width // 2), PAD)}
            tile_rows = max(TILE // (2 * max(parts["KEPT"], 2 * parts["HALF"])), 1)
        else:
            parts = {
                "KEPT": next_power_of_two(kept) if kept else 0, "HALF": next_power_of_two(width // 2) if width else 0,
                **facts,
            }
            tile_rows = max(TILE // next_power_of_two(x.shape[-1]), 1)
        constants = {"ROWS": tile_rows, "INTERLEAVED": call["interleaved"], **parts}
        tensors, grid = ("x", "positions", "table", "y"), ceil_div(count, tile_rows)
        return (Program("rope.apply", grid, tensors, numbers, constants, general=general),)


KERNELS = (RopeApply(),)
