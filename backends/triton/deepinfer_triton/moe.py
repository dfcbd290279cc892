"""`moe.route` and `moe.swiglu_quantize` in Triton.

Bound: bytes, and for route the ALU pipe: it reads the logits once and takes some 450 instructions per token and warp.
swiglu_quantize moves 4 bytes in and 1 to 2 out per bf16 activation, about 20 FLOP with its two true divisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from deepinfer.registry import Call, TensorMeta
from deepinfer_triton import warp_top
from deepinfer_triton.blocks import block_reason, cut, narrow, strides
from deepinfer_triton.kernel import Program, TritonKernel, ceil_div, dense_outputs, next_power_of_two

EXPERT_LIMIT = 4096
TILE = 2048  # activations per program, of two loads each
ROUTE = (1, 1)  # tokens and warps of a program
ROUTE_WARPS = 4  # tokens per program: an SM takes 32 programs at most, which are not enough warps if each is one
WARP_EXPERTS = (128, 256)  # numbers of experts that one warp ranks by `warp_top`: one or two vectors per lane
FLOOR = 1e-4  # of quant.quantize_fp8, whose rules the activation follows
FORMS = {"": ((1, 128), ""), "fp8_1x128": ((1, 128), "f32"), "mxfp8": ((1, 32), "ue8m0")}


class Route(TritonKernel):
    """Up to 4096 experts (padded by group), any strides."""

    op = "moe.route"
    name = "triton_route"
    batch_invariant = True
    sources = ("deepinfer_triton/device/moe.py", "deepinfer_triton/warp_top.py")

    def _padded(self, call: Call) -> tuple[int, int]:
        groups = call["n_group"]
        return next_power_of_two(groups), next_power_of_two(max(call["logits"].shape[1] // groups, 1))

    def refuse(self, call: Call) -> list[str]:
        groups, size = self._padded(call)
        if groups * size > EXPERT_LIMIT:
            return [f"up to {EXPERT_LIMIT} experts, groups padded to powers of two; got {groups}x{size}"]
        return dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        logits, bias, groups, top_k = call["logits"], call["bias"], call["n_group"], call["top_k"]
        if logits.shape[0] == 0 or top_k == 0:
            return ()
        per_lane = logits.shape[1] // 32
        fits = logits.shape[1] in WARP_EXPERTS and top_k <= 32 and (groups == 1 or not 32 % groups)
        if fits and _in_vectors(logits) and (bias is None or _in_vectors(bias)):
            return (self._by_warp(call, per_lane),)
        gp, sp = self._padded(call)
        tokens, warps = ROUTE if gp * sp <= 512 else (1, 4)
        numbers = {
            "tokens": logits.shape[0], "step": logits.stride[0], "expert_step": logits.stride[1],
            "bias_step": bias.stride[0] if bias else 0,
            "groups": groups, "size": logits.shape[1] // groups, "scale": call["scale"], "eps": call["eps"],
        }
        constants = {
            "T": tokens, "GP": gp, "SP": sp, "SCORING": call["scoring"], "TOP2": call["group_score"] == "top2_sum",
            "RENORMALIZE": call["renormalize"], "TOP_K": top_k, "KEPT": call["topk_group"] if groups > 1 else 0,
            "WHOLE": gp * sp == logits.shape[1] and logits.shape[0] % tokens == 0,
        }
        tensors = ("logits", "bias", "weights", "ids")
        grid = ceil_div(logits.shape[0], tokens)
        return (Program("moe.route", grid, tensors, numbers, constants, warps),)


    def _by_warp(self, call: Call, per_lane: int) -> Program:
        """A token per warp; a group is a number of whole lanes."""
        logits, bias, groups, top_k = call["logits"], call["bias"], call["n_group"], call["top_k"]
        top2 = call["group_score"] == "top2_sum"
        numbers = {
            "tokens": logits.shape[0], "step": logits.stride[0], "expert_step": logits.stride[1],
            "bias_step": bias.stride[0] if bias else 0, "scale": call["scale"], "eps": call["eps"],
        }
        constants = {
            "W": ROUTE_WARPS, "V": per_lane, "SCORING": call["scoring"], "RENORMALIZE": call["renormalize"],
            "TOP_K": top_k,
            "KEEP": warp_top.keep(32 // groups, call["topk_group"], top2) if groups > 1 else "",
            "SELECT": warp_top.select(per_lane, top_k),
            "OPERANDS": ",".join(["=&r"] * per_lane + ["r"] * 2 * per_lane),
        }
        tensors = ("logits", "bias", "weights", "ids")
        grid = ceil_div(logits.shape[0], ROUTE_WARPS)
        return Program("moe.route_warp", grid, tensors, numbers, constants, ROUTE_WARPS)


def _in_vectors(operand: TensorMeta) -> bool:
    """Whether Triton gives each lane V neighbours, as `warp_top` needs: alignment alone decides who holds what."""
    return operand.aligned and operand.stride[-1] == 1 and all(step % 16 == 0 for step in operand.stride[:-1])


class SwigluQuantize(TritonKernel):
    """All three forms, any strides."""

    op = "moe.swiglu_quantize"
    name = "triton_swiglu_quantize"
    batch_invariant = True
    sources = ("deepinfer_triton/device/moe.py", "deepinfer_triton/device/codec.py")

    def refuse(self, call: Call) -> list[str]:
        rows, width = call["gate_up"].shape
        return block_reason(cut((rows, width // 2), FORMS[call["quantize"]][0])) + dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        gate_up, weights, limit = call["gate_up"], call["route_weights"], call["limit"]
        if gate_up.numel == 0:
            return ()
        block, form = FORMS[call["quantize"]]
        _, row, column = strides(gate_up) or (0, 0, 0)
        general = narrow((0, row, column), gate_up.shape[1] // 2)
        found = cut((gate_up.shape[0], gate_up.shape[1] // 2), block, TILE, general)
        numbers = {
            "sb": 0, "sr": row, "sc": column, "weight_step": weights.stride[0] if weights else 0,
            "limit": inf if limit is None else limit, "floor": FLOOR, **found.numbers,
        }
        constants = {**found.constants, "LIMITED": general or limit is not None, "FORM": form}
        tensors = ("gate_up", "route_weights", "data", "scale")
        return (Program(
            "moe.swiglu_quantize", found.programs, tensors, numbers, constants, found.warps, general=general,
        ),)


KERNELS = (Route(), SwigluQuantize())
