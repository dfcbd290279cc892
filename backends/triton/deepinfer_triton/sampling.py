"""`sampling.apply_token_mask` in Triton: one pass over the logits.

Bound: bytes, one read and one write of the logits and a bit per logit.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.registry import Call
from deepinfer_triton.kernel import (
    Program,
    TritonKernel,
    ceil_div,
    dense_outputs,
    grid_reason,
    rows_reason,
    rows_view,
    wide,
)

# Tokens per program of a small vocabulary and of others: fewer words than threads, so that each thread loads its own.
LEAST, BLOCK = 128, 1024


class ApplyTokenMask(TritonKernel):
    """Rows of any stride with unit stride inside."""

    op = "sampling.apply_token_mask"
    name = "triton_apply_token_mask"
    batch_invariant = True
    sources = ("deepinfer_triton/device/sampling.py",)

    def refuse(self, call: Call) -> list[str]:
        reasons = rows_reason("logits", call["logits"]) + rows_reason("mask", call["mask"]) + dense_outputs(call)
        return reasons + grid_reason(call["logits"].shape[0] * ceil_div(call["logits"].shape[1], 1024))

    def programs(self, call: Call) -> Sequence[Program]:
        logits, mask = call["logits"], call["mask"]
        if logits.numel == 0:
            return ()
        (rows, step), (_, mask_step) = rows_view(logits) or (0, 0), rows_view(mask) or (0, 0)
        general = not wide(step, logits.shape[1])
        block = LEAST if logits.shape[1] <= LEAST else BLOCK
        tiles = ceil_div(logits.shape[1], block)
        numbers = {
            "step": step, "mask_step": mask_step, "masks": mask.shape[0], "vocabulary": logits.shape[1], "tiles": tiles,
            "map_step": call["row_map"].stride[0] if call["row_map"] else 0,
        }
        tensors = ("logits", "mask", "row_map", "masked")
        constants = {"BLOCK": block}
        return (Program("sampling.apply_token_mask", rows * tiles, tensors, numbers, constants, general=general),)


KERNELS = (ApplyTokenMask(),)
