"""The block quantisers, `quant.dequantize` and `quant.pack_scales` in Triton, exact to the bit.

Bound: bytes. quantize_fp8 moves 3 bytes per bf16 element (5 per float32), mxfp4 2.5, dequantize to bf16 3; per element
one true division (about 10 FLOP), a compare and a convert.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.registry import Call
from deepinfer_triton.blocks import TILE, block_reason, cut, narrow, strides, strides_reason
from deepinfer_triton.kernel import (
    Program,
    TritonKernel,
    ceil_div,
    dense_inputs,
    dense_outputs,
    grid_reason,
    next_power_of_two,
    result_meta,
    run,
)

NORMAL_FLOOR = 2.0**-50  # keeps scales in the range that needs no care with underflow
SOURCES: tuple[str, ...] = ("deepinfer_triton/device/quant.py", "deepinfer_triton/device/codec.py")
PAIRS = (2048, 2)  # values per program and warps, of the packed path
SMALL = 8  # side of a small tile of scales


def _steps(names: str, values: tuple[int, int, int] | None) -> dict[str, int]:
    """Strides under the argument names `names`[b|r|c]."""
    return dict(zip((f"{names}b", f"{names}r", f"{names}c"), values or (0, 0, 0), strict=True))


class QuantizeFp8(TritonKernel):
    """Any block of up to 16384 values, any strides."""

    op = "quant.quantize_fp8"
    name = "triton_quantize_fp8"
    batch_invariant = True
    sources = SOURCES
    paired = False

    def refuse(self, call: Call) -> list[str]:
        found = cut(call["x"].shape, call["block"])
        return strides_reason("x", call["x"]) + block_reason(found, self.paired) + dense_outputs(call)

    def extra(self, call: Call, general: bool) -> tuple[dict[str, float], dict[str, bool | int]]:
        """Numbers and constants of this format."""
        floor = call["amax_floor"]
        normal = floor >= NORMAL_FLOOR and not general
        return {"floor": floor}, {"UE8M0": call["scale_dtype"] == "ue8m0", "NORMAL": normal}

    def programs(self, call: Call) -> Sequence[Program]:
        x = call["x"]
        if x.numel == 0:
            return ()
        general = narrow(strides(x), x.shape[-1])
        found, (numbers, constants) = cut(x.shape, call["block"], general=general), self.extra(call, general)
        return (Program(
            self.op, found.programs, ("x", "data", "scale"), {**_steps("s", strides(x)), **found.numbers, **numbers},
            {**found.constants, **constants}, found.warps, general=general,
        ),)


class QuantizeMxfp4(QuantizeFp8):
    """Blocks with an even number of columns."""

    op = "quant.quantize_mxfp4"
    name = "triton_quantize_mxfp4"
    sources = (*SOURCES, "deepinfer_triton/device/fp4.py")
    paired = True

    def extra(self, call: Call, general: bool) -> tuple[dict[str, float], dict[str, bool | int]]:
        return {}, {"RUN": run(call["x"].dtype)}

    def programs(self, call: Call) -> Sequence[Program]:
        x, (height, width) = call["x"], call["block"]
        batch, row, column = strides(x) or (0, 0, 0)
        whole = height == 1 and width >= 8 and not width & (width - 1) and not x.shape[-1] % width
        if not (whole and x.numel and x.dtype == torch.bfloat16 and x.aligned and column == 1
                and not batch % 8 and not row % 8):
            return super().programs(call)
        found = cut(x.shape, (1, width), PAIRS[0])
        known = ("rows", "grid_rows", "grid_cols", "lines", "tiles")
        numbers = {"sb": batch // 8, "sr": row // 8, "cols": found.cols // 8, **{k: found.numbers[k] for k in known}}
        constants = {"BC": width, **{name: found.constants[name] for name in ("ROWS", "CBS", "BATCHED")}}
        tensors = ("x", "data", "scale")
        return (Program("fp4.quantize_pairs", found.programs, tensors, numbers, constants, PAIRS[1]),)


class Dequantize(TritonKernel):
    """Every format and scale type."""

    op = "quant.dequantize"
    name = "triton_dequantize"
    batch_invariant = True
    sources = SOURCES

    def refuse(self, call: Call) -> list[str]:
        found = cut(result_meta(call, "x").shape, call["block"])
        reasons = strides_reason("data", call["data"]) + strides_reason("scale", call["scale"])
        return reasons + block_reason(found, call["format"] == "e2m1") + dense_outputs(call)

    def programs(self, call: Call) -> Sequence[Program]:
        data, scale, packed = call["data"], call["scale"], call["format"] == "e2m1"
        if data.numel == 0:
            return ()
        x = result_meta(call, "x")
        rows, cols = call["block"]
        piece = min(rows & -rows, max(TILE // next_power_of_two(cols), 1))  # rows of a block that one tile row holds
        general = narrow(strides(data), x.shape[-1]) or (strides(scale) or (0, 0, 1))[2] != 1
        found = cut(x.shape, (piece, cols), general=general)
        steps = {**_steps("s", strides(data)), **_steps("t", strides(scale))}
        numbers = {**steps, **found.numbers, "repeat": rows // piece}
        constants = {**found.constants, "PACKED": packed, "KIND": call["scale_dtype"], "RUN": run(x.dtype)}
        tensors = ("data", "scale", "x")
        return (Program(self.op, found.programs, tensors, numbers, constants, found.warps, general=general),)


class PackScales(TritonKernel):
    """Both layouts, ragged counts."""

    op = "quant.pack_scales"
    name = "triton_pack_scales"
    sources = SOURCES
    rows_tile = 64
    k_tile = 64

    def refuse(self, call: Call) -> list[str]:
        return strides_reason("scale", call["scale"]) + dense_inputs(call, "rows") + dense_outputs(call) + grid_reason(
            self._tiles(call)[0]
        )

    def _fours(self, call: Call) -> bool:
        """Whether every four blocks of a row can be loaded together."""
        scale = call["scale"]
        batch, row, column = strides(scale) or (0, 0, 0)
        return bool(scale.aligned and column == 1 and not (batch % 4 or row % 4 or scale.shape[-1] % 4))

    def _tiles(self, call: Call) -> tuple[int, int, int, int, int]:
        """(programs, row tiles, tiles of K, rows per tile, blocks of K per tile)."""
        packed = result_meta(call, "packed")
        words, width = packed.shape[-2:]
        per_word = 4 if call["layout"] == "ue8m0x4_mn" else 1
        if self._fours(call):
            mt = min(self.rows_tile, next_power_of_two(max(width, 1)))
            kt = max(min(self.k_tile, next_power_of_two(max(words * per_word, 1))), 4)
        else:  # two sizes do for all
            mt = SMALL if width <= SMALL else self.rows_tile
            kt = SMALL if words * per_word <= SMALL else self.k_tile
        row_tiles, word_tiles = ceil_div(width, mt), ceil_div(words * per_word, kt)
        batch = packed.numel // max(words * width, 1)
        return batch * row_tiles * word_tiles, row_tiles, word_tiles, mt, kt

    def programs(self, call: Call) -> Sequence[Program]:
        scale, packed = call["scale"], result_meta(call, "packed")
        if packed.numel == 0:
            return ()
        count, row_tiles, word_tiles, mt, kt = self._tiles(call)
        numbers = {
            **_steps("s", strides(scale)), "mn": call["mn"], "blocks": scale.shape[-1], "words": packed.shape[-2],
            "width": packed.shape[-1], "row_tiles": row_tiles, "word_tiles": word_tiles,
        }
        packs = call["layout"] == "ue8m0x4_mn"
        fours = self._fours(call)
        constants = {"MT": mt, "KT": kt, "UE8M0": packs, "FOURS": fours}
        (constants if fours else numbers)["step"] = call["block_rows"]
        # No more threads than results, or the transposition stores some of them twice.
        warps = min(max(mt * kt // (4 if packs else 1) // 128, 1), 8)
        tensors = ("scale", "rows", "packed")
        return (Program(self.op, count, tensors, numbers, constants, warps, general=not fours),)


KERNELS = (QuantizeFp8(), QuantizeMxfp4(), Dequantize(), PackScales())
