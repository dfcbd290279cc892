"""`flash_mla.kv_cache_write`, `kv_cache_read` and `merge_states` in Triton; every cache format.

Bound: bytes: a row in, its record out, or the reverse; merging reads all states once. Writers divide truly and round
once, exact to the bit; the facts of a format come from `deepinfer.ops.flash_mla.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import frexp, gcd
from typing import Any

import torch

from deepinfer.ops.flash_mla.codec import CACHE_FP4_FLOOR, FP8_FLOOR, MXFP4_FLOOR
from deepinfer.ops.flash_mla.formats import LAYOUTS, KVFormat, Layout
from deepinfer.registry import Call, TensorMeta
from deepinfer_triton.kernel import (
    Program,
    TritonKernel,
    ceil_div,
    collapse,
    dense_outputs,
    grid_reason,
    next_power_of_two,
    result_meta,
    run,
    wide,
)

ROW_LIMIT = 8192
TILE = 2048  # coded values per program of the cache ops; twice that where two share a byte
PLAIN_TILE = 4096  # values per program of plain rows
MERGE_TILE = 2048  # values per program of merging, of each state
LEAST = 64  # channels of a row of the general merging form
WRITE_PAIRS = READ_PAIRS = (2048, 2)  # values per program and warps of the packed fp4 paths
SOURCES = ("deepinfer_triton/device/kv.py", "deepinfer_triton/device/codec.py", "deepinfer_triton/device/fp4.py")


def _cache_reason(cache: TensorMeta, layout: Layout) -> list[str]:
    """Records hold float32 scales and bf16 channels, which are accessed as such."""
    if cache.shape[0] * cache.shape[1] >= 1 << 31:
        return [f"kv_cache of fewer than 2^31 slots, got {cache.shape[0]} x {cache.shape[1]}"]
    if layout.scale_kind != "f32" and not layout.plain:
        return []
    steps = [cache.stride[axis] for axis in (0, 1) if cache.shape[axis] > 1]
    if cache.aligned and not any(step % 4 for step in steps):
        return []
    return [f"kv_cache needs a 16-byte aligned address and strides in multiples of 4 bytes, got {cache.stride}"]


def _place(cache: TensorMeta, layout: Layout) -> dict[str, int]:
    """Where the parts of a record lie, in elements of the cache."""
    blocks, page, _ = cache.shape
    record = {"capacity": blocks * page, "block_step": cache.stride[0], "data_step": cache.stride[1]}
    if not layout.quantised:
        return record
    codes, scales = layout.code_bytes, layout.scale_bytes
    if not layout.split:
        return {**record, "scale_step": cache.stride[1], "scale_first": codes, "plain_first": codes + scales}
    return {
        **record, "data_step": layout.data_bytes, "scale_step": scales + layout.scale_pad,
        "scale_first": page * layout.data_bytes, "plain_first": codes,
    }


def _page(cache: TensorMeta) -> tuple[dict[str, int], dict[str, int]]:
    """The page size among the numbers or, where a division by it is a shift, among the constants."""
    size = cache.shape[1]
    facts = {"page": size}
    return ({}, facts) if size >= 16 and not size & (size - 1) else (facts, {})


def _rows(rows: TensorMeta) -> tuple[dict[str, int], bool]:
    """(strides of the writer's rows, whether they allow no vectors)."""
    step = rows.stride[0] if rows.shape[0] > 1 else 0
    return {"row_step": step, "row_column": rows.stride[1]}, rows.stride[1] != 1 or not wide(step)


def _alignment(numbers: Mapping[str, int]) -> int:
    """The power of two, up to a vector's 16 bytes, that all data rows are multiples of."""
    return gcd(16, numbers["block_step"], numbers["data_step"])


def _tiling(layout: Layout) -> tuple[dict[str, Any], int]:
    """(constants, tokens per program) of a quantised format."""
    tiles = next_power_of_two(layout.coded // layout.tile)
    rows = max(TILE * 8 // layout.bits // (tiles * layout.tile), 1)
    constants = {
        "ROWS": rows, "TILES": tiles, "TILE": layout.tile, "PLAIN": layout.plain, "BITS": layout.bits,
        "SCALE": layout.scale_kind,
    }
    return constants, rows


def _floors(layout: Layout) -> dict[str, float | int]:
    """Lower bounds of a block's maximum and of ue8m0 exponents, and the largest code: the writer's contract as numbers.

    A bound of the maximum, or of the scale, is one of the exponent too, since rounding up keeps order.
    """
    top = 448.0 if layout.bits == 8 else 6.0
    if layout.format in (KVFormat.V32_FP8, KVFormat.V4_FP8):
        floor = 0.0
    elif layout.bits == 8:
        floor = FP8_FLOOR
    else:
        floor = CACHE_FP4_FLOOR if layout.scale_kind == "e4m3" else MXFP4_FLOOR
    mantissa, exponent = frexp(FP8_FLOOR if layout.format is KVFormat.V4_FP8 else floor / top)
    return {"FLOOR": floor, "LEAST": 127 + exponent - (mantissa == 0.5), "TOP": top}


def _plain_tiling(width: int, tile: int) -> tuple[dict[str, int], int]:
    block = next_power_of_two(max(width, 1))
    rows = max(tile // block, 1)
    return {"ROWS": rows, "BLOCK": block}, rows


def _pairs(layout: Layout, cache: TensorMeta, rows: TensorMeta, numbers: Mapping[str, int]) -> bool:
    """Whether rows and codes can be taken eight values at a time: words of codes, vectors of bf16."""
    whole = layout.bits == 4 and not layout.plain and not layout.coded & (layout.coded - 1)
    dense = rows.dtype == torch.bfloat16 and rows.aligned and rows.stride[1] == 1 and not rows.stride[0] % 8
    return whole and dense and cache.aligned and _alignment(numbers) >= 4


def _pair_tiling(layout: Layout, tile: int) -> tuple[dict[str, Any], int]:
    """(constants, tokens per program) of the packed path."""
    rows = max(tile // layout.coded, 1)
    return {"ROWS": rows, "TILES": layout.coded // layout.tile, "TILE": layout.tile, "SCALE": layout.scale_kind}, rows


def _record(numbers: Mapping[str, int]) -> dict[str, int]:
    """The numbers of a record without plain channels."""
    return {name: value for name, value in numbers.items() if name != "plain_first"}


class KvCacheWrite(TritonKernel):
    """In place; skipped slots touch nothing."""

    op = "flash_mla.kv_cache_write"
    name = "triton_kv_cache_write"
    sources = SOURCES

    def refuse(self, call: Call) -> list[str]:
        layout = LAYOUTS[call["format"]]
        reasons = _cache_reason(call["kv_cache"], layout)
        if call["rows"].shape[1] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} channels, got {call['rows'].shape[1]}")
        return reasons

    def programs(self, call: Call) -> Sequence[Program]:
        cache, rows, slots, layout = call["kv_cache"], call["rows"], call["slots"], LAYOUTS[call["format"]]
        if rows.numel == 0 or cache.numel == 0:
            return ()
        (steps, general), (page, fixed) = _rows(rows), _page(cache)
        numbers = {
            "count": rows.shape[0], "slot_step": slots.stride[0], **steps, **page, **_place(cache, layout),
        }
        tensors = ("kv_cache", "rows", "slots")
        if not layout.quantised:
            shape, step = _plain_tiling(rows.shape[1], PLAIN_TILE)
            grid, numbers["width"] = ceil_div(rows.shape[0], step), rows.shape[1]
            return (Program("kv.write_plain", grid, tensors, numbers, {**shape, **fixed}, general=general),)
        if _pairs(layout, cache, rows, numbers):
            return self._packed(numbers, cache, layout)
        constants, step = _tiling(layout)
        align = 1 if general else _alignment(numbers)
        constants |= {"RUN": run(rows.dtype), "ALIGN": align, **fixed, **_floors(layout)}
        numbers |= {"tiles": layout.coded // layout.tile, "coded": layout.coded}
        grid = ceil_div(rows.shape[0], step)
        warps = 2 if layout.scale_kind == "f32" and layout.plain else 4  # 0.93 for 0.87 of copy bandwidth on an H200
        return (Program("kv.write_coded", grid, tensors, numbers, constants, warps, general=general),)

    def _packed(self, numbers: dict[str, int], cache: TensorMeta, layout: Layout) -> Sequence[Program]:
        tile, warps = WRITE_PAIRS
        constants, step = _pair_tiling(layout, tile)
        floors = _floors(layout)
        constants |= {**_page(cache)[1], "FLOOR": floors["FLOOR"], "LEAST": floors["LEAST"]}
        constants["ALIGN"] = min(_alignment(numbers), layout.tile // 2)
        grid, tensors = ceil_div(numbers["count"], step), ("kv_cache", "rows", "slots")
        kept = {name: value for name, value in _record(numbers).items() if name != "row_column"}
        kept["row_step"] //= 8
        return (Program("fp4.write_pairs", grid, tensors, kept, constants, warps),)


class KvCacheRead(TritonKernel):
    """Rows come out contiguous; slots outside the cache give zeros."""

    op = "flash_mla.kv_cache_read"
    name = "triton_kv_cache_read"
    batch_invariant = True
    sources = SOURCES

    def refuse(self, call: Call) -> list[str]:
        layout = LAYOUTS[call["format"]]
        reasons = _cache_reason(call["kv_cache"], layout) + dense_outputs(call)
        if not layout.quantised and call["kv_cache"].shape[2] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} channels, got {call['kv_cache'].shape[2]}")
        return reasons

    def programs(self, call: Call) -> Sequence[Program]:
        cache, slots, layout = call["kv_cache"], call["slots"], LAYOUTS[call["format"]]
        width = layout.width or cache.shape[2]
        if slots.numel == 0 or width == 0:
            return ()
        page, fixed = _page(cache)
        numbers = {
            "count": slots.shape[0], "slot_step": slots.stride[0], "width": width, **page, **_place(cache, layout),
        }
        tensors = ("kv_cache", "slots", "rows")
        if not layout.quantised:
            shape, step = _plain_tiling(width, PLAIN_TILE)
            constants = {**shape, **fixed}
            return (Program("kv.read_plain", ceil_div(slots.shape[0], step), tensors, numbers, constants),)
        if _pairs(layout, cache, result_meta(call, "rows"), numbers):
            tile, warps = READ_PAIRS
            constants, step = _pair_tiling(layout, tile)
            constants |= fixed
            kept = {name: value for name, value in _record(numbers).items() if name != "width"}
            return (Program("fp4.read_pairs", ceil_div(slots.shape[0], step), tensors, kept, constants, warps),)
        constants, step = _tiling(layout)
        constants |= {"RUN": run(result_meta(call, "rows").dtype), "ALIGN": _alignment(numbers), **fixed}
        numbers |= {"tiles": layout.coded // layout.tile, "coded": layout.coded}
        return (Program("kv.read_coded", ceil_div(slots.shape[0], step), tensors, numbers, constants),)


class MergeStates(TritonKernel):
    """Any number of states; rows of up to 8192 channels."""

    op = "flash_mla.merge_states"
    name = "triton_merge_states"
    batch_invariant = True
    sources = ("deepinfer_triton/device/kv.py",)

    def refuse(self, call: Call) -> list[str]:
        outs, lses = call["outs"], call["lses"]
        reasons = dense_outputs(call) + grid_reason(outs.numel // max(outs.shape[0], 1))
        if outs.shape[-1] > ROW_LIMIT:
            reasons.append(f"rows of up to {ROW_LIMIT} channels, got {outs.shape[-1]}")
        if outs.numel and outs.shape[-1] > 1 and outs.stride[-1] != 1:
            reasons.append(f"outs needs unit stride in its last dimension, got {outs.stride[-1]}")
        for name, meta, inner in (("outs", outs, 3), ("lses", lses, 2)):
            if meta.numel and collapse(meta.shape[1:-inner], meta.stride[1:-inner]) is None:
                reasons.append(f"{name} needs leading dimensions that collapse to one, got {meta.stride}")
        return reasons

    def programs(self, call: Call) -> Sequence[Program]:
        outs, lses, sink = call["outs"], call["lses"], call["attn_sink"]
        states, *lead, tokens, heads, width = outs.shape
        lines = tokens * heads
        for size in lead:
            lines *= size
        if lines == 0:
            return ()
        out_lead = (collapse(lead, outs.stride[1:-3]) or (1, 0))[1]
        lse_lead = (collapse(lead, lses.stride[1:-2]) or (1, 0))[1]
        general = not wide(outs.stride[0], out_lead, outs.stride[-3], outs.stride[-2], width)
        constants, step = _plain_tiling(max(width, LEAST) if general else width, MERGE_TILE)
        constants |= {"UNROLL": 1} if general else {"states": states, "UNROLL": min(states, 4)}
        numbers = {
            **({"states": states} if general else {}),
            "lines": lines, "tokens": tokens, "heads": heads, "width": width,
            "out_state": outs.stride[0], "out_lead": out_lead, "out_token": outs.stride[-3],
            "out_head": outs.stride[-2], "lse_state": lses.stride[0], "lse_lead": lse_lead,
            "lse_token": lses.stride[-1], "lse_head": lses.stride[-2],
            "sink_step": sink.stride[0] if sink else 0,
        }
        tensors = ("outs", "lses", "attn_sink", "out", "lse")
        return (Program("kv.merge_states", ceil_div(lines, step), tensors, numbers, constants, general=general),)


KERNELS = (KvCacheWrite(), KvCacheRead(), MergeStates())
