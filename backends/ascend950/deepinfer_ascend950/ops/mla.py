"""What the latent attention kernels are told: rows of a cache, pools, and the packed struct of arguments.

Invariants: lists, lengths, tables and offsets stay on the device. Every op of the family packs the same struct; the
modes differ in where the next key lies. See ops/attention.py for the ops.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import torch

from deepinfer.hal import Arg
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer_ascend950.ops.base import arguments, read, write

ROWS = 64  # of a job
SPARSE, PAGED, CUT_ROWS, HEADS = 0, 1, 2, 3
KINDS = {8: 1, 4: 2}
SCALES = {"f32": 0, "ue8m0": 1, "e4m3": 2}
POOL = "7q6q6i12i"
MAX_WIDTH, MAX_VALUE = 576, 512  # what the buffers of a core hold


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
    index: torch.Tensor | None
    length: torch.Tensor | None
    rows: Rows
    page: int
    slots: int
    block_stride: int
    topk: int

    def pack(self) -> bytes:
        """The struct MlaPool."""
        index, length = self.index, self.length
        size = 0 if index is None else index.element_size()
        step = [0] if index is None else [s * size for s in index.stride()]
        at = (step[0], step[1] if len(step) == 3 else 0, step[-1])
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


def attended_rows(cache: torch.Tensor, name: str) -> Rows:
    """The same for attention, which keeps float32 scales in a table apart from the raw rows: they come last."""
    rows = cache_rows(cache, name)
    if LAYOUTS[name].scale_kind != "f32":
        return rows
    codes, (at, pitch, size, _), plain = (*rows.pieces, (0, 0, 0, 0))[:3]
    return replace(rows, pieces=(codes, plain, (at, pitch, size, 0)), raw_pitch=_up(codes[2] + plain[2], 32))


def paged_pool(cache: torch.Tensor, name: str, index: torch.Tensor, length: torch.Tensor | None, topk: int) -> Pool:
    """A paged cache [blocks, page, ...] in format `name`."""
    blocks, page, _ = cache.shape
    stride = cache.stride(0) * cache.element_size()
    return Pool(cache, index, length, attended_rows(cache, name), page, blocks * page, stride, topk)


@dataclass(frozen=True)
class Problem:
    """One launch. q [b, s, h, d], out [b, s, h, d_v], lse and top [b, h, s]; ragged ones have b = 1 and cut s by cu_q.

    `values` are those of keys per head; `parts` > 1 splits every request's keys, with out [parts, b, s, h, d_v] and
    lse [parts, b, h, s] for the partial results. The last `rest` channels of q are what rounding left of those before.
    """

    q: torch.Tensor
    pools: tuple[Pool, ...]
    out: torch.Tensor
    lse: torch.Tensor
    mode: int
    scale: float
    sink: torch.Tensor | None = None
    top: torch.Tensor | None = None
    causal: bool = False
    cu_q: torch.Tensor | None = None
    cu_k: torch.Tensor | None = None
    values: torch.Tensor | None = None
    parts: int = 1
    rest: int = 0

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        return "mla_attend" if self.q.dtype is torch.bfloat16 else "mla_attend_f32"

    @property
    def jobs(self) -> int:
        """Jobs of the launch; an upper bound where requests are ragged."""
        b, s, heads, _ = self.q.shape
        together = 1 if self.mode == SPARSE else ROWS if self.mode == HEADS else jobs_tokens(heads)
        groups = heads if self.mode == HEADS else -(-heads // ROWS)
        requests = b if self.cu_q is None else self.cu_q.shape[0] - 1
        tiles = b * -(-s // together) if self.cu_q is None else -(-s // together) + requests
        return tiles * groups * self.parts

    def pack(self) -> list[Arg]:
        """The struct MlaArgs."""
        q, cu_q, cu_k = self.q, self.cu_q, self.cu_k
        out, lse = (self.out[0], self.lse[0]) if self.parts > 1 else (self.out, self.lse)
        two = [*self.pools, *[None] * (2 - len(self.pools))]
        caches = [x.cache if x else None for x in two]
        if self.values is not None:
            caches[1] = self.values
        pointers = [read(q), *map(read, caches), *(read(x.index if x else None) for x in two)]
        pointers += [*(read(x.length if x else None) for x in two), read(self.sink), write(self.out), write(self.lse)]
        pointers += [write(self.top), read(cu_q), read(cu_k)]
        strides = [s * q.element_size() for s in q.stride()[:3]] + [s * out.element_size() for s in out.stride()[:3]]
        strides += [lse.stride(0) * 4, lse.stride(2) * 4, lse.stride(1) * 4]
        strides += [self.out.stride(0) * out.element_size(), self.lse.stride(0) * 4] if self.parts > 1 else [0, 0]
        keys = self.pools[0].cache
        strides += [_step(cu_q), _step(cu_k)]
        strides += [_head(keys), _head(self.values)] if self.mode == HEADS else [0, 0]
        strides += [q.shape[1], keys.shape[0]]
        batch = q.shape[0] if cu_q is None else cu_q.shape[0] - 1
        sizes = [
            batch,
            *q.shape[1:3],
            q.shape[3] - self.rest,
            out.shape[-1],
            q.shape[-1] if self.mode == HEADS else 0,
            self.mode,
        ]
        sizes += [int(self.causal), len(self.pools), self.parts, _size(cu_q), _size(cu_k)]
        sizes += [int(out.dtype is torch.float32), self.rest]
        args = arguments(pointers, "17q14if4x", (*strides, *sizes, self.scale))
        packed = b"".join(x.pack() if x else bytes(struct.calcsize("<" + POOL)) for x in two)
        return [*args[:-1], Arg(args[-1].value + packed)]


def jobs_tokens(heads: int) -> int:
    """Tokens that share a job of dense attention."""
    return 1 if heads > ROWS // 2 else 2 * (ROWS // 2 // heads)


def _size(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.element_size()


def _step(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0) * tensor.element_size()


def _head(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(1) * tensor.element_size()
