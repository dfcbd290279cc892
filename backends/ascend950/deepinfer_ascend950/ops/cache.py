"""KV cache rows: writing latent rows into slots and reading them back, in every format.

Invariants: slots stay on the device; a record's parts are described by `Rows` (ops/mla.py), which the attention kernels
read them by as well. Floors and divisors are those of the codec that is the contract.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.ops.flash_mla import codec
from deepinfer.ops.flash_mla.formats import LAYOUTS, KVFormat, Layout
from deepinfer.ops.quant.codec import E2M1_MAX, E4M3_MAX
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel, arguments, read, write
from deepinfer_ascend950.ops.mla import cache_rows

ARGS = "4q3q3q3i3i12i3fi"
ROW_TYPES = {torch.float32: 0, torch.bfloat16: 1}
SOURCES = (
    "kernels/kv_cache.asc",
    "kernels/codec.h",
    "kernels/mla_args.h",
    "kernels/convert.h",
    "kernels/deepinfer.h",
)


def scale_rule(layout: Layout) -> tuple[float, float, float, int]:
    """(amax floor, divisor, scale floor, whether a scale of 0 becomes 1) of a format's writer."""
    if layout.bits == 4:
        floor = codec.CACHE_FP4_FLOOR if layout.scale_kind == "e4m3" else codec.MXFP4_FLOOR
        return floor, E2M1_MAX, 0.0, 0
    if layout.format is KVFormat.V32_FP8:
        return 0.0, E4M3_MAX, 0.0, 1
    if layout.format is KVFormat.V4_FP8:
        return 0.0, E4M3_MAX, codec.FP8_FLOOR, 0
    return codec.FP8_FLOOR, E4M3_MAX, 0.0, 0


def cache_arguments(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, name: str, writes: bool) -> list[Arg]:
    """The struct CacheArgs for rows [n, d] and slots [n]; `writes` tells which side is written."""
    layout, r = LAYOUTS[name], cache_rows(cache, name)
    pieces = [*r.pieces, *[(0, 0, 0, 0)] * (3 - len(r.pieces))]
    pointers = [read(rows) if writes else write(rows), write(cache) if writes else read(cache), read(slots)]
    values: list[int | float] = [
        rows.stride(0) * rows.element_size(),
        slots.stride(0) * slots.element_size(),
        cache.stride(0) * cache.element_size(),
        cache.shape[0] * cache.shape[1],
    ]
    for part in range(4):
        values += [piece[part] for piece in pieces]
    values += [rows.shape[0], rows.shape[1], cache.shape[1], slots.element_size()]
    values += [r.kind, r.coded, r.plain, r.tile_log, r.scale_kind, r.scale_at, r.plain_at, ROW_TYPES[rows.dtype]]
    return arguments(pointers, ARGS, (*values, *scale_rule(layout)))


def _row_reasons(name: str, meta: TensorMeta) -> list[str]:
    return [f"{name}: a row is not contiguous"] if meta.shape[1] > 1 and meta.stride[1] != 1 else []


class CacheWrite(AscendKernel):
    """`kv_cache_write` on the vector cores."""

    op = "flash_mla.kv_cache_write"
    name = "ascend950_kv_cache_write"
    source = "kv_cache"
    sources = SOURCES

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = _row_reasons("rows", call["rows"])
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "kv_cache_write"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        cache, rows, slots, name = args
        if cache.numel() and rows.numel():
            plan.state.launch(stream, rows.shape[0], cache_arguments(cache, rows, slots, name, writes=True))


class CacheRead(AscendKernel):
    """`kv_cache_read` on the vector cores."""

    op = "flash_mla.kv_cache_read"
    name = "ascend950_kv_cache_read"
    source = "kv_cache"
    sources = SOURCES
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = _row_reasons("out", call.out[0]) if call.out is not None else []
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "kv_cache_read"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        cache, slots, name, _ = args
        rows = out[0]
        if rows.numel():
            plan.state.launch(stream, rows.shape[0], cache_arguments(cache, rows, slots, name, writes=False))


KERNELS = (CacheWrite(), CacheRead())
