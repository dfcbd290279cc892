"""Latent attention: sparse prefill, sparse decode in every cache format, dense paged decode. One kernel serves all.

Invariants: lists, lengths and tables stay on the device; a job is one token and up to 64 heads, so results do not
depend on the batch; queries are bf16 (float32 ones are refused).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Arg, Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel, arguments, read, write

HEADS = 64
SPARSE, DENSE, DENSE_CAUSAL = 0, 1, 2
KINDS = {8: 1, 4: 2}
SCALES = {"f32": 0, "ue8m0": 1, "e4m3": 2}
POOL = "7q6q6i12i"
MAX_WIDTH, MAX_VALUE = 576, 512


@dataclass(frozen=True)
class Rows:
    """How rows of a pool lie: pieces (offset in block, pitch, bytes, place in the raw row) and the raw row's parts."""

    pieces: tuple[tuple[int, int, int, int], ...]
    kind: int
    coded: int
    plain: int
    tile_log: int
    scale_kind: int
    scale_at: int
    plain_at: int
    raw_pitch: int


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def plain_rows(width: int, pitch: int, size: int = 2) -> Rows:
    """Rows of bf16 (size 2) or float32 (size 4) that lie `pitch` bytes apart."""
    return Rows(((0, pitch, width * size, 0),), 3 if size == 4 else 0, 0, 0, 0, 0, 0, 0, _up(width * size, 32))


def coded_rows(layout: Layout, page: int, pitch: int) -> Rows:
    """Rows of a quantised format; `pitch` is the record distance of interleaved ones."""
    codes, scales, plain = layout.code_bytes, layout.scale_bytes, layout.plain_bytes
    scale_at, plain_at = _up(codes + plain, 32), codes
    if layout.split:
        data, row = layout.data_bytes, scales + layout.scale_pad
        pieces = [(0, data, data, 0), (page * data, row, scales, scale_at)]
    elif plain == 0:  # codes, then scales: one piece
        scale_at, pieces = codes, [(0, pitch, codes + scales, 0)]
    else:
        pieces = [(0, pitch, codes, 0), (codes, pitch, scales, scale_at), (codes + scales, pitch, plain, plain_at)]
    raw = _up(max(to + size for _, _, size, to in pieces), 32)
    return Rows(
        tuple(pieces),
        KINDS[layout.bits],
        layout.coded,
        layout.plain,
        layout.tile.bit_length() - 1,
        SCALES[layout.scale_kind],
        scale_at,
        plain_at,
        raw,
    )


@dataclass(frozen=True)
class Pool:
    """One pool of a call: cache, list of slots (or of blocks), lengths, page, and its rows."""

    cache: torch.Tensor
    index: torch.Tensor
    length: torch.Tensor | None
    rows: Rows
    page: int
    slots: int
    block_stride: int
    topk: int

    def pack(self) -> bytes:
        """The struct MlaPool."""
        index, length = self.index, self.length
        size = index.element_size()
        step = [s * size for s in index.stride()]
        at = (step[0], step[1] if index.ndim == 3 else 0, step[-1])
        long = (
            (0, 0)
            if length is None
            else (
                length.stride(0) * length.element_size(),
                length.stride(1) * length.element_size() if length.ndim == 2 else 0,
            )
        )
        pieces = [*self.rows.pieces, *[(0, 0, 0, 0)] * (3 - len(self.rows.pieces))]
        r = self.rows
        return struct.pack(
            "<" + POOL,
            self.block_stride,
            self.slots,
            *at,
            *long,
            *(x[0] for x in pieces),
            *(x[1] for x in pieces),
            *(x[2] for x in pieces),
            *(x[3] for x in pieces),
            self.page,
            self.topk,
            size,
            0 if length is None else length.element_size(),
            r.kind,
            r.coded,
            r.plain,
            r.tile_log,
            r.scale_kind,
            r.scale_at,
            r.plain_at,
            r.raw_pitch,
        )


def cache_rows(cache: torch.Tensor, name: str) -> Rows:
    """Rows of a paged cache [blocks, page, ...] in format `name`."""
    layout, size = LAYOUTS[name], cache.element_size()
    pitch = cache.stride(1) * size
    return coded_rows(layout, cache.shape[1], pitch) if layout.quantised else plain_rows(cache.shape[2], pitch, size)


def paged_pool(cache: torch.Tensor, name: str, index: torch.Tensor, length: torch.Tensor | None, topk: int) -> Pool:
    """A paged cache [blocks, page, ...] in format `name`."""
    blocks, page, _ = cache.shape
    stride = cache.stride(0) * cache.element_size()
    return Pool(cache, index, length, cache_rows(cache, name), page, blocks * page, stride, topk)


def mla_arguments(
    q: torch.Tensor,
    pools: list[Pool],
    sink: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    top: torch.Tensor | None,
    mode: int,
    scale: float,
) -> list[Arg]:
    """The struct MlaArgs for q [b, s, h, d], out [b, s, h, d_v], lse and top [b, h, s]."""
    batch, s_q, heads, width = q.shape
    two = [*pools, *[None] * (2 - len(pools))]
    pointers = [
        read(q),
        *(read(x.cache if x else None) for x in two),
        *(read(x.index if x else None) for x in two),
        *(read(x.length if x else None) for x in two),
        read(sink),
        write(out),
        write(lse),
        write(top),
    ]
    strides = [s * q.element_size() for s in q.stride()[:3]] + [s * out.element_size() for s in out.stride()[:3]]
    strides += [lse.stride(0) * 4, lse.stride(2) * 4, lse.stride(1) * 4]
    args = arguments(pointers, "9q6ifi", (*strides, batch, s_q, heads, width, out.shape[-1], mode, scale, len(pools)))
    packed = b"".join(x.pack() if x else bytes(struct.calcsize("<" + POOL)) for x in two)
    return [*args[:-1], Arg(args[-1].value + packed)]


def common_reasons(call: Call, q: TensorMeta, out: int) -> list[str]:
    """Why the kernel cannot take these queries and outputs."""
    reasons = []
    if q.dtype is not torch.bfloat16:
        reasons.append("q: float32 queries (the cube's float32 rate makes them pointless here)")
    if q.shape[-1] % 16 or q.shape[-1] > MAX_WIDTH:
        reasons.append(f"q: width {q.shape[-1]}, must be a multiple of 16 up to {MAX_WIDTH}")
    if q.shape[-2] > 1 and q.stride[-2] <= 0:
        reasons.append("q: heads repeat")
    if call["d_v"] % 16 or call["d_v"] > MAX_VALUE:
        reasons.append(f"d_v: {call['d_v']}, must be a multiple of 16 up to {MAX_VALUE}")
    if call.out is not None and call.out[0].stride[-1] != 1:
        reasons.append("out: last stride must be 1")
    sink = call["attn_sink"]
    if sink is not None and sink.shape[0] > 1 and sink.stride[0] != 1:
        reasons.append("attn_sink: not contiguous")
    return reasons


class SparsePrefill(AscendKernel):
    """Sparse prefill over an unquantised [S, d] tensor."""

    op = "flash_mla.sparse_prefill"
    name = "ascend950_mla_sparse_prefill"
    source = "mla_sparse"
    sources = ("kernels/mla_sparse.asc", "kernels/mla_vector.h", "kernels/mla_args.h", "kernels/deepinfer.h")
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call, call["q"], 3)
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "mla_sparse"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, kv, indices, lengths, sink, _, scale = args
        result, lse, top = out
        if result.numel() == 0 and lse.numel() == 0:
            return
        rows, pitch = kv.shape[0], kv.stride(0) * kv.element_size()
        pool = Pool(
            kv, indices.unsqueeze(1), lengths, plain_rows(kv.shape[1], pitch), max(rows, 1), rows, 0, indices.shape[1]
        )
        # [h, T] results as [b = T, h, s = 1]
        lse, top = (x.t().unsqueeze(-1) for x in (lse, top))
        packed = mla_arguments(q.unsqueeze(1), [pool], sink, result.unsqueeze(1), lse, top, SPARSE, scale)
        plan.state.launch(stream, q.shape[0] * -(-q.shape[1] // HEADS), packed)


class SparseDecode(AscendKernel):
    """Sparse decode over one or two paged pools."""

    op = "flash_mla.sparse_decode"
    name = "ascend950_mla_sparse_decode"
    source = "mla_sparse"
    sources = SparsePrefill.sources
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call, call["q"], 4)
        for name in ("kv_cache", "extra_kv_cache"):
            if call[name] is not None and call[name].dtype is torch.float32:
                reasons.append(f"{name}: float32 rows")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "mla_sparse"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, indices, lengths, extra, extra_indices, extra_lengths, sink, name, extra_name, _, scale = args
        result, lse = out
        if result.numel() == 0:
            return
        pools = [paged_pool(cache, name, indices, lengths, indices.shape[2])]
        if extra is not None:
            pools.append(paged_pool(extra, extra_name, extra_indices, extra_lengths, extra_indices.shape[2]))
        packed = mla_arguments(q, pools, sink, result, lse, None, SPARSE, scale)
        plan.state.launch(stream, q.shape[0] * q.shape[1] * -(-q.shape[2] // HEADS), packed)


class DenseDecode(AscendKernel):
    """Dense decode over a paged cache; a request's keys are walked by one core per 64 heads."""

    op = "flash_mla.decode"
    name = "ascend950_mla_decode"
    source = "mla_sparse"
    sources = SparsePrefill.sources
    batch_invariant = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call, call["q"], 4)
        if call["kv_cache"].dtype is torch.float32:
            reasons.append("kv_cache: float32 rows")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, "mla_sparse"))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, table, lengths, sink, name, _, causal, scale = args
        result, lse = out
        if result.numel() == 0:
            return
        pool = paged_pool(cache, name, table, lengths, table.shape[1] * cache.shape[1])
        packed = mla_arguments(q, [pool], sink, result, lse, None, DENSE_CAUSAL if causal else DENSE, scale)
        plan.state.launch(stream, q.shape[0] * q.shape[1] * -(-q.shape[2] // HEADS), packed)


KERNELS = (SparsePrefill(), SparseDecode(), DenseDecode())
