"""Contract of `quant.pack_scales`: row-major float32 scales to the MN-major layouts that matrix kernels load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.quant import cases, contract
from deepinfer.ops.quant.codec import UE8M0_NAN
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

LAYOUTS = {"f32_mn": torch.float32, "ue8m0x4_mn": torch.int32}
MAX_BLOCK_ROWS = 1 << 16
ALIGN = 4  # matrix rows per 16 bytes of float32 or of packed words: the granularity of a bulk tensor copy


@register
class PackScales(OpSpec):
    """Scales [..., R, KB] (f32, one per `block_rows` matrix rows x one block of K) -> [..., words of K, align(mn, 4)].

    The result is contiguous, so neighbouring matrix rows are neighbours in memory (MN-major) and one step along K is
    align(mn, 4) elements. "f32_mn": KB float32 values. "ue8m0x4_mn": ceil(KB/4) int32 words, each four exponent bytes
    of consecutive K blocks, the lowest K in the lowest byte. Matrix row m takes scale row m // block_rows; mn <= R *
    block_rows. Words beyond mn, beyond `rows` and bytes beyond KB are 0. `rows` (shape [...], or absent = mn) counts
    the valid matrix rows of each matrix, clamped to [0, mn]; scales of the others are padding and never looked at.

    For "ue8m0x4_mn" every valid scale must be a power of two in [2^-127, 2^127]: `validate` raises naming the row;
    without it such a scale becomes the NaN byte 0xFF, so that the mistake shows in every result that uses it.
    """

    name = "quant.pack_scales"
    params = (
        Param("scale"), Param("layout", Kind.STR), Param("block_rows", Kind.INT), Param("mn", Kind.INT),
        Param("rows", Kind.OPT_TENSOR),
    )
    returns = ("packed",)

    def check(self, call: Call) -> None:
        scale, rows, mn = call["scale"], call["rows"], call["mn"]
        if call["layout"] not in LAYOUTS:
            raise invalid(f"{self.name}: layout", call["layout"], f"must be one of {tuple(LAYOUTS)}", "'ue8m0x4_mn'")
        if scale.ndim < 2:
            raise invalid(f"{self.name}: scale", list(scale.shape), "must have at least 2 dimensions [..., R, KB]")
        checks.dtype(self.name, "scale", scale, (torch.float32,))
        checks.between(self.name, "block_rows", call["block_rows"], 1, MAX_BLOCK_ROWS)
        checks.between(self.name, "mn", mn, 0, scale.shape[-2] * call["block_rows"])
        if rows is not None:
            checks.dtype(self.name, "rows", rows, checks.INDEX_DTYPES)
            checks.shape(self.name, "rows", rows, scale.shape[:-2], "= one count per matrix")

    def check_values(self, args: Args) -> None:
        if args["layout"] != "ue8m0x4_mn":
            return
        scale = args["scale"]
        wrong = ~_power_of_two(scale) & _valid(args)[..., :: args["block_rows"], None]
        if bool(wrong.any()):
            where = tuple(int(i) for i in wrong.nonzero()[0])
            value = float(scale[where])
            raise invalid(
                f"{self.name}: scale[{', '.join(map(str, where))}]", value,
                f"row {where[-2]}: must be a power of two in [2^-127, 2^127]; quantise with scale_dtype='ue8m0'",
            )

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        scale = call["scale"]
        words = scale.shape[-1] if call["layout"] == "f32_mn" else -(-scale.shape[-1] // 4)
        shape = (*scale.shape[:-2], words, _aligned(call["mn"]))
        return (TensorMeta.dense(shape, LAYOUTS[call["layout"]], scale.device),)

    def reference(self, args: Args) -> Tensors:
        scale, mn, step = args["scale"], args["mn"], args["block_rows"]
        valid = _valid(args)
        packed_k = args["layout"] == "ue8m0x4_mn"
        words = -(-scale.shape[-1] // 4) if packed_k else scale.shape[-1]
        out = torch.zeros((*scale.shape[:-2], words, _aligned(mn)), dtype=LAYOUTS[args["layout"]])
        for m in range(mn):
            for k in range(scale.shape[-1]):
                value = scale[..., m // step, k]
                if packed_k:
                    byte = torch.where(valid[..., m], _exponent(value), 0).long()
                    word = out[..., k // 4, m].long() & 0xFFFFFFFF | byte << 8 * (k % 4)
                    out[..., k // 4, m] = torch.where(word >= 1 << 31, word - (1 << 32), word).int()
                else:
                    out[..., k, m] = torch.where(valid[..., m], value, 0)
        return (out,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        scale, mn = args["scale"], args["mn"]
        wide = scale.repeat_interleave(args["block_rows"], -2)[..., :mn, :]
        fill = (0, _aligned(mn) - mn)
        keep = _valid(args)[..., :mn, None]
        if args["layout"] == "f32_mn":
            found = torch.where(keep, wide, torch.zeros_like(wide)).transpose(-1, -2)
            return contract.deliver((torch.nn.functional.pad(found, fill).contiguous(),), out)
        byte = torch.where(keep, _exponent(wide), 0).transpose(-1, -2)
        byte = torch.nn.functional.pad(byte, (*fill, 0, -scale.shape[-1] % 4))
        byte = byte.reshape(*byte.shape[:-2], byte.shape[-2] // 4, 4, byte.shape[-1])
        word = byte[..., 0, :] | byte[..., 1, :] << 8 | byte[..., 2, :] << 16 | byte[..., 3, :] << 24
        return contract.deliver((word.contiguous(),), out)

    def cost(self, call: Call) -> Cost:
        written = self.outputs(call)[0]
        return Cost(flops=float(written.numel), nbytes=float(call["scale"].nbytes + written.nbytes))

    def cases(self) -> Iterable[Case]:
        return cases.pack_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return cases.pack_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        if args["rows"] is None:
            return None
        unused = ~_valid(args)[..., :: args["block_rows"], None].expand(args["scale"].shape)
        garbage = torch.rand(args["scale"].shape, generator=generator) * 3 - 1
        garbage[garbage < 0] = torch.nan
        return {**args, "scale": torch.where(unused, garbage, args["scale"])}


def _aligned(mn: int) -> int:
    return -(-mn // ALIGN) * ALIGN


def _valid(args: Args) -> torch.Tensor:
    """[..., R * block_rows] bool: which matrix rows hold a scale that counts."""
    scale, mn, rows = args["scale"], args["mn"], args["rows"]
    row = torch.arange(scale.shape[-2] * args["block_rows"], device=scale.device)
    limit = torch.full(scale.shape[:-2], mn, device=scale.device) if rows is None else rows.clamp(max=mn)
    found: torch.Tensor = row < limit.unsqueeze(-1)
    return found


def _power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """Whether float32 values are powers of two in [2^-127, 2^127], by their bits."""
    bits = scale.contiguous().view(torch.int32)
    found: torch.Tensor = ((bits & 0x7FFFFF == 0) & (bits > 0) & (bits < 0x7F800000)) | (bits == 1 << 22)
    return found


def _exponent(scale: torch.Tensor) -> torch.Tensor:
    """Biased exponent of powers of two, 0xFF for anything else; int32."""
    bits = scale.contiguous().view(torch.int32)
    return torch.where(_power_of_two(scale), bits >> 23, UE8M0_NAN)
