"""The GEMM family: dense, grouped and masked products, one launch each.

Invariants: group sizes stay on the device; every operand has one unit stride (rows or columns), which is checked in
`supports` and not repaired here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.ops.deep_gmm.operand import FP8_ROWS, FP8_TILES, MXFP4_ROWS, MXFP8_ROWS, MXFP8_TILES, PLAIN
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel, Loaded, arguments, read, write

DENSE, GROUPED, MASKED = "deep_gmm.gemm", "deep_gmm.grouped_gemm", "deep_gmm.masked_grouped_gemm"
MODES = {DENSE: 0, GROUPED: 1, MASKED: 2}
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
ENTRIES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
NAMES = {
    DENSE: ("a", "a_scale", "a_recipe", "b", "b_scale", "b_recipe", "b_packed", "b_layout", "c", "bias", "out_dtype"),
    GROUPED: (
        "a",
        "a_scale",
        "a_recipe",
        "b",
        "b_scale",
        "b_recipe",
        "b_packed",
        "b_layout",
        "counts",
        "starts",
        "out_dtype",
    ),
    MASKED: ("a", "a_scale", "a_recipe", "b", "b_scale", "b_recipe", "b_packed", "b_layout", "counts", "out_dtype"),
}
TAIL = "17q12i"  # GemmArgs behind its pointers
LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Matrix:
    """Strides in bytes of a [rows, cols] matrix or a stack of them."""

    row: int
    col: int
    group: int


def strides(tensor: torch.Tensor | None) -> Matrix:
    """Byte strides of a tensor's last two dimensions and of the one before; zeros for an absent one."""
    if tensor is None:
        return Matrix(0, 0, 0)
    step, size = tensor.stride(), tensor.dtype.itemsize
    col = 1 if tensor.shape[-1] == 1 else step[-1]  # the stride of a single column is never used
    return Matrix(step[-2] * size, col * size, step[0] * size if len(step) > 2 else 0)


def unit_stride(meta: TensorMeta) -> bool:
    """Whether rows or columns of the last two dimensions lie one element apart, or there is but one of them."""
    return any(step == 1 or size == 1 for step, size in zip(meta.stride[-2:], meta.shape[-2:], strict=True))


def entry_of(call: Call) -> str:
    """Name of the plain kernel's element type; a product over no K reads no operand, so any will do."""
    return ENTRIES.get(call["a"].dtype, "bf16")


def operand_reasons(call: Call, names: tuple[str, ...]) -> list[str]:
    """Why operands cannot be read by the DMA engines as they lie."""
    reasons: list[str] = []
    if call["a"].shape[-1] == 0:
        return reasons  # nothing of them is read
    for name in names:
        meta = call[name]
        if not unit_stride(meta):
            reasons.append(f"{name}: strides {meta.stride} have no unit among the last two")
        if any(step == 0 and size > 1 for step, size in zip(meta.stride[-2:], meta.shape[-2:], strict=True)):
            reasons.append(f"{name}: strides {meta.stride} repeat a row or column")
        if max(meta.shape, default=0) > LIMIT:
            reasons.append(f"{name}: a dimension beyond 2^31")
    return reasons


def output_reasons(call: Call) -> list[str]:
    """Why the given output cannot be written as it lies."""
    if call.out is None:
        return []
    meta = call.out[0]
    return [] if meta.stride[-1] == 1 or meta.shape[-1] == 1 else [f"out: last stride {meta.stride[-1]}, must be 1"]


def epilogue_reasons(op: str, call: Call) -> list[str]:
    """Why the FixPipe cannot finish the product: only a bias fits into the cube's own epilogue."""
    if op != DENSE:
        return []
    bias = call["bias"]
    reasons = ["an addend C needs the vector epilogue"] if call["c"] is not None else []
    if bias is not None and bias.shape[0] > 1 and bias.stride[0] != 1:
        reasons.append("bias is not contiguous")
    return reasons


def addend_reasons(op: str, call: Call) -> list[str]:
    """Why the vector cores cannot add C or the bias as they lie."""
    if op != DENSE:
        return []
    c, bias = call["c"], call["bias"]
    reasons = []
    if c is not None and c.shape[-1] > 1 and c.stride[-1] != 1:
        reasons.append("c: a row is not contiguous")
    if bias is not None and bias.shape[0] > 1 and bias.stride[0] != 1:
        reasons.append("bias is not contiguous")
    return reasons


def named(op: str, args: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(NAMES[op], args, strict=True))


def gemm_arguments(op: str, values: dict[str, Any], d: torch.Tensor, depth: int, scale_rows: int) -> list[Any]:
    """The argument block `GemmArgs` for one call; `scale_rows` rows of B share one scale."""
    a, b, c, bias = values["a"], values["b"], values.get("c"), values.get("bias")
    counts, starts = values.get("counts"), values.get("starts")
    sa, sb = values["a_scale"], values["b_scale"]
    ma, mb, md, mc, msa, msb = (strides(t) for t in (a, b, d, c, sa, sb))
    index = [(t.stride(0) * t.element_size() if t is not None else 0) for t in (counts, starts)]
    groups = b.shape[0] if MODES[op] else 1
    tail = (
        ma.row,
        ma.col,
        ma.group,
        mb.row,
        mb.col,
        mb.group,
        md.row,
        md.group,
        mc.row,
        msa.row,
        msa.col,
        msa.group,
        msb.row,
        msb.col,
        msb.group,
        *index,
        a.shape[-2],
        b.shape[-2],
        depth,
        groups,
        MODES[op],
        TYPES[d.dtype],
        TYPES[c.dtype] if c is not None else 0,
        TYPES[bias.dtype] if bias is not None else 0,
        counts.element_size() if counts is not None else 0,
        starts.element_size() if starts is not None else 0,
        scale_rows,
        0,
    )
    pointers = [read(a), read(b), write(d), read(sa), read(sb), read(c), read(bias), read(counts), read(starts)]
    return arguments(pointers, TAIL, tail)


class PlainGemm(AscendKernel):
    """bf16, f16 and f32 operands on the cube, one core per 128 x 256 tile."""

    source = "gemm_plain"
    sources = ("kernels/gemm_plain.asc", "kernels/gemm_cube.h", "kernels/gemm_tile.h", "kernels/deepinfer.h")
    batch_invariant = True

    def __init__(self, op: str) -> None:
        self.op, self.name = op, "ascend950_gemm_plain"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = operand_reasons(call, ("a", "b")) + output_reasons(call)
        if (call["a_recipe"], call["b_recipe"]) != (PLAIN, PLAIN) and call["a"].shape[-1] > 0:
            reasons.append("operands are quantised")
        reasons += epilogue_reasons(str(self.op), call)
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, f"gemm_{entry_of(call)}"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        values, d = named(str(self.op), args), out[0]
        if d.numel() == 0:
            return
        plan.state.launch(stream, plan.state.cores, gemm_arguments(str(self.op), values, d, values["a"].shape[-1], 1))


def wants_copy(scale: TensorMeta, recipe: str) -> bool:
    """Whether scales must be rewritten before the cube can take them: per row, in pairs, at even addresses."""
    odd = scale.shape[-1] % 2 or any(step % 2 for step in scale.stride[:-1]) or not scale.aligned
    return recipe != MXFP8_ROWS or bool(odd) or scale.stride[-1] != 1


class MxGemm(AscendKernel):
    """e4m3 rows with UE8M0 scales per 32 of K against e4m3 or e2m1 weights; the cube scales, the FixPipe stores.

    Scales that do not lie as the cube wants are copied first; e2m1 weights pass through the vector cores.
    """

    source = "gemm_mx"
    sources: tuple[str, ...] = (
        "kernels/gemm_mx.asc",
        "kernels/gemm_mx.h",
        "kernels/gemm_cube.h",
        "kernels/gemm_tile.h",
        "kernels/deepinfer.h",
    )
    batch_invariant = True
    suffix = ""

    def __init__(self, op: str) -> None:
        self.op, self.name = op, f"ascend950_gemm_mx{self.suffix}"

    def end_reasons(self, call: Call) -> list[str]:
        """Why the end of the product cannot be done this way."""
        return epilogue_reasons(str(self.op), call)

    def supports(self, props: DeviceProps, call: Call) -> Support:
        if call["a_recipe"] != MXFP8_ROWS or call["b_recipe"] not in (MXFP8_ROWS, MXFP8_TILES, MXFP4_ROWS):
            return Support.no("operands are not e4m3 with UE8M0 scales against e4m3 or e2m1 with such")
        names = ("a",) if call["b_recipe"] == MXFP4_ROWS else ("a", "b")
        reasons = operand_reasons(call, names) + output_reasons(call) + self.end_reasons(call)
        if call["a"].shape[-1] == 0:
            reasons.append("K is 0: nothing to multiply")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        pitch = -(-call["a"].shape[-1] // 64) * 2
        copied = [wants_copy(call[f"{x}_scale"], call[f"{x}_recipe"]) for x in ("a", "b")]
        rows = [call[x].numel // call[x].shape[-1] for x in ("a", "b")]
        sizes = [_up(n * pitch, 256) if copy else 0 for n, copy in zip(rows, copied, strict=True)]
        expand = Loaded(device.executable("gemm_mx"), "mx_expand", device.props.compute_units or 1)  # type: ignore[attr-defined]
        entry = f"gemm_mx{'_fp4' if call['b_recipe'] == MXFP4_ROWS else ''}{self.suffix}"
        return Plan(sum(sizes), (self.load(device, entry), expand, *sizes, pitch))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        values, d = named(str(self.op), args), out[0]
        if d.numel() == 0:
            return
        state, expand, a_size, b_size, pitch = plan.state
        if a_size:
            values["a_scale"] = expand_scales(expand, stream, values["a"], values["a_scale"], 1, pitch, workspace)
        if b_size:
            repeat = 32 if values["b_recipe"] == MXFP8_TILES else 1
            rest = workspace[a_size:]
            values["b_scale"] = expand_scales(expand, stream, values["b"], values["b_scale"], repeat, pitch, rest)
        state.launch(stream, state.cores, gemm_arguments(str(self.op), values, d, values["a"].shape[-1], 1))


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def expand_scales(
    state: Loaded,
    stream: Stream,
    x: torch.Tensor,
    scale: torch.Tensor,
    repeat: int,
    pitch: int,
    workspace: torch.Tensor,
) -> torch.Tensor:
    """Scales of `x`, one row per row of it and `pitch` per row, in the workspace."""
    rows, groups = x.shape[-2], x.shape[0] if x.ndim == 3 else 1
    wide = workspace[: groups * rows * pitch].view((groups, rows, pitch) if x.ndim == 3 else (rows, pitch))
    step = strides(scale)
    tail = (step.row, step.col, step.group, rows, scale.shape[-1], pitch, groups, repeat, 0)
    state.launch(stream, groups * -(-rows // repeat), arguments([read(scale), write(wide)], "3q6i", tail))
    return wide


class MxAddGemm(MxGemm):
    """The same with an addend C, which the vector cores add."""

    source = "gemm_vec"
    sources = ("kernels/gemm_vec.asc", *MxGemm.sources)
    suffix = "_add"

    def end_reasons(self, call: Call) -> list[str]:
        absent = ["no addend C: the cube alone is faster"] if call["c"] is None else []
        return absent + addend_reasons(DENSE, call)


class ScaledGemm(AscendKernel):
    """e4m3 with float32 scales per 128 of K: the vector cores promote partial sums, add C and bias, and round."""

    source = "gemm_vec"
    sources = ("kernels/gemm_vec.asc", "kernels/gemm_mx.h", "kernels/gemm_tile.h", "kernels/deepinfer.h")
    batch_invariant = True

    def __init__(self, op: str) -> None:
        self.op, self.name = op, "ascend950_gemm_fp8_scaled"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        if call["a_recipe"] != FP8_ROWS or call["b_recipe"] not in (FP8_ROWS, FP8_TILES):
            return Support.no("operands are not a pair of e4m3 with float32 scales")
        reasons = operand_reasons(call, ("a", "b")) + output_reasons(call) + addend_reasons(str(self.op), call)
        if call["a"].shape[-1] == 0:
            reasons.append("K is 0: nothing to multiply")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        rows = 1 if call["b_recipe"] == FP8_ROWS else 128
        return Plan(state=self.load(device, "gemm_fp8_scaled", rows))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        values, d = named(str(self.op), args), out[0]
        if d.numel() == 0:
            return
        packed = gemm_arguments(str(self.op), values, d, values["a"].shape[-1], plan.state.extra)
        plan.state.launch(stream, plan.state.cores, packed)


class AddGemm(AscendKernel):
    """Plain operands with an addend C, which the vector cores add."""

    op = DENSE
    name = "ascend950_gemm_add"
    source = "gemm_vec"
    sources = ScaledGemm.sources
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = operand_reasons(call, ("a", "b")) + output_reasons(call) + addend_reasons(DENSE, call)
        if (call["a_recipe"], call["b_recipe"]) != (PLAIN, PLAIN) and call["a"].shape[-1] > 0:
            reasons.append("operands are quantised")
        if call["c"] is None:
            reasons.append("no addend C: the cube alone is faster")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, f"gemm_{entry_of(call)}_add"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        values, d = named(DENSE, args), out[0]
        if d.numel() == 0:
            return
        plan.state.launch(stream, plan.state.cores, gemm_arguments(DENSE, values, d, values["a"].shape[-1], 1))


KERNELS = (*(kernel(op) for kernel in (PlainGemm, MxGemm, ScaledGemm) for op in MODES), AddGemm(), MxAddGemm(DENSE))
GROUPED_KERNELS = tuple(kernel for kernel in KERNELS if kernel.op == GROUPED)
