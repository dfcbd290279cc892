"""`norm.rms_norm` and `norm.fused_add_rms_norm` in Triton: rows in registers, statistics in float32.

Bound: bytes; 2 bytes moved per element of a two-byte dtype and input or output (the weight stays in L2), 4 or 5 FLOP
per element.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Call
from deepinfer_triton.kernel import (
    Program,
    TritonKernel,
    ceil_div,
    dense_inputs,
    dense_outputs,
    next_power_of_two,
    rows_reason,
    rows_view,
    wide,
)

ROW_LIMIT = 32768
ROW_LEAST = 64  # shorter rows are padded to this
TILE = 2048  # elements per program where a row is shorter; depends on d alone, so a row's bits do not on the batch


class RmsNorm(TritonKernel):
    """Rows of up to 32768 elements."""

    op = "norm.rms_norm"
    name = "triton_rms_norm"
    batch_invariant = True
    sources = ("deepinfer_triton/device/norm.py",)
    inputs: tuple[tuple[str, str], ...] = (("x", "stride"),)
    outputs: tuple[str, ...] = ("y",)

    def refuse(self, call: Call) -> list[str]:
        reasons = [reason for name, _ in self.inputs for reason in rows_reason(name, call[name])]
        if call["x"].shape[-1] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} elements, got {call['x'].shape[-1]}")
        return reasons + dense_inputs(call, "weight") + dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        x = call["x"]
        if x.numel == 0:
            return ()
        views = {label: rows_view(call[name]) or (0, 0) for name, label in self.inputs}
        d, count = x.shape[-1], views["stride"][0]
        block = max(next_power_of_two(d), ROW_LEAST)
        rows = max(TILE // block, 1)
        numbers = {**{label: view[1] for label, view in views.items()}, "rows": count, "d": d, "eps": call["eps"]}
        tensors = (*(name for name, _ in self.inputs), "weight", *self.outputs)
        warps = min(max(rows * block // 2048, 1), 16)
        function = f"norm.{self.op.partition('.')[2]}"
        general = not wide(d, *(step for _, step in views.values()))
        constants = {"ROWS": rows, "BLOCK": block}
        return (Program(function, ceil_div(count, rows), tensors, numbers, constants, warps, general=general),)


class FusedAddRmsNorm(RmsNorm):
    """The residual sum in the same pass."""

    op = "norm.fused_add_rms_norm"
    name = "triton_fused_add_rms_norm"
    inputs = (("x", "stride"), ("residual", "step"))
    outputs = ("y", "new_residual")


KERNELS = (RmsNorm(), FusedAddRmsNorm())
