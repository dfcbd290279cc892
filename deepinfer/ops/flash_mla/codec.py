"""Rows of float channels to the bytes of a KV format and back, exact to the bit.

Invariants: quantisation divides truly and rounds once (to nearest, ties to even); every block of all zeros gets a
finite, non-zero scale; a block that holds NaN or inf becomes NaN as a whole (scale NaN, and NaN payload where the code
has one). Decoding multiplies in the dtype asked for and rounds nothing before it. Slots are block * page + offset.
"""

from __future__ import annotations

import torch

from deepinfer.ops.flash_mla.formats import Fields, KVFormat, Layout, cut_record, fields
from deepinfer.ops.quant import codec as q

# Smallest block maximum (or, for V4, smallest scale) that a writer assumes; per format, see `_scale`.
FP8_FLOOR = 1e-4
MXFP4_FLOOR = 6.0 * 2.0**-126
E4M3_NAN = 0x7F
BF16_NAN = 0x7FC0
NAN_SCALE = {"f32": float("nan"), "ue8m0": q.UE8M0_NAN, "e4m3": E4M3_NAN}
CACHE_FP4_FLOOR = 6.0 * 2.0**-9  # gives the smallest e4m3 subnormal as scale


def _scale(amax: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """(f32 or byte to store, its float32 value) for block maxima `amax` (float32)."""
    if layout.format is KVFormat.V32_FP8:  # plain amax / 448; a scale that vanishes is replaced by 1
        scale = amax / q.E4M3_MAX
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        return scale, scale
    if layout.scale_kind == "f32":
        scale = amax.clamp(min=FP8_FLOOR) / q.E4M3_MAX
        return scale, scale
    if layout.scale_kind == "e4m3":
        stored = q.e4m3_encode(amax.clamp(min=CACHE_FP4_FLOOR) / q.E2M1_MAX).view(torch.uint8)
        return stored, q.e4m3_decode(stored)
    if layout.format is KVFormat.V4_FP8:  # here the floor belongs to the scale
        stored = q.ue8m0_encode((amax / q.E4M3_MAX).clamp(min=FP8_FLOOR))
    elif layout.bits == 4:
        stored = q.ue8m0_encode(amax.clamp(min=MXFP4_FLOOR) / q.E2M1_MAX)
    else:
        stored = q.ue8m0_encode(amax.clamp(min=FP8_FLOOR) / q.E4M3_MAX)
    return stored, q.ue8m0_decode(stored)


def encode_rows(rows: torch.Tensor, layout: Layout) -> Fields:
    """Quantise rows [n, width] (any float dtype, computed in float32) to the bytes of a quantised `layout`."""
    wide = rows.float()
    tiles = wide[:, : layout.coded].reshape(len(wide), layout.coded // layout.tile, layout.tile)
    bad = ~tiles.isfinite().all(-1)
    tiles = tiles.masked_fill(bad[..., None], 0.0)
    stored, value = _scale(tiles.abs().amax(-1), layout)
    scaled = (tiles / value[..., None]).flatten(1)
    if layout.bits == 8:
        codes = q.e4m3_encode(scaled).view(torch.uint8)
        codes = codes.masked_fill(bad.repeat_interleave(layout.tile, 1), E4M3_NAN)
    else:
        codes = q.e2m1_pack(q.e2m1_encode(scaled))
    stored = stored.masked_fill(bad, NAN_SCALE[layout.scale_kind])
    stored = stored.contiguous().view(torch.uint8)
    if not layout.plain:
        return Fields(codes, stored, codes[:, :0])
    tail = rows[:, layout.coded :]
    plain = tail.to(torch.bfloat16).contiguous().view(torch.int16)
    plain = plain.masked_fill(tail.isnan(), BF16_NAN)  # one NaN, whatever the conversion makes of it
    return Fields(codes, stored, plain.view(torch.uint8))


def decode_scales(scales: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Scale bytes [n, scale_bytes] -> float32 [n, tiles]."""
    if layout.scale_kind == "f32":
        return scales.contiguous().view(torch.float32)
    return q.e4m3_decode(scales) if layout.scale_kind == "e4m3" else q.ue8m0_decode(scales)


def decode_rows(parts: Fields, layout: Layout, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Bytes [n, ...] of a quantised `layout` -> rows [n, width] in `dtype` (float32 or float64)."""
    scales = decode_scales(parts.scales, layout).to(dtype)
    codes = _values(parts.codes, layout.bits).to(dtype).view(*scales.shape, layout.tile)
    if not layout.plain:
        return codes.mul_(scales[..., None]).flatten(1)
    rows = torch.empty((codes.shape[0], layout.width), dtype=dtype, device=codes.device)
    torch.mul(codes, scales[..., None], out=rows[:, : layout.coded].view(codes.shape))
    rows[:, layout.coded :] = parts.plain.contiguous().view(torch.bfloat16)
    return rows


def _values(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Code bytes [n, k] -> float32 values [n, k * 8 / bits]."""
    return q.e4m3_decode(codes) if bits == 8 else q.e2m1_decode_packed(codes)


def take(view: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows [n, w] of a view [blocks, page, w] at in-range `slots` [n] int64."""
    blocks, page, width = view.shape
    outer, inner, step = view.stride()
    if page == 1:
        return view[:, 0].index_select(0, slots)
    if inner == 0 or (blocks > 1 and outer % inner):
        return view[slots // page, slots % page]
    # Blocks a whole number of rows apart: rows of one long matrix, of which some are never named.
    apart = outer // inner if blocks > 1 else page
    rows = view.as_strided(((blocks - 1) * apart + page, width), (inner, step))
    return rows.index_select(0, slots if apart == page else slots + slots // page * (apart - page))


def read_slots(
    cache: torch.Tensor, layout: Layout, slots: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Rows [n, width] of the cache at in-range `slots` [n] int64, dequantised in `dtype` (float32 or float64)."""
    if not layout.quantised:
        return take(cache, slots).to(dtype)
    if not layout.split:  # one gather of whole records, then cut
        return decode_rows(cut_record(take(cache, slots), layout), layout, dtype)
    views = fields(cache, layout)
    parts = Fields(take(views.codes, slots), take(views.scales, slots), take(views.plain, slots))
    return decode_rows(parts, layout, dtype)


def write_slots(
    cache: torch.Tensor, layout: Layout, rows: torch.Tensor, slots: torch.Tensor, only_if: torch.Tensor | None = None
) -> None:
    """Write rows [n, width] to in-range `slots` [n] int64 of the cache; no other byte changes.

    Equal slots must carry equal rows. `only_if` is a bool scalar on the device: False writes back what is there.
    """
    page = cache.shape[1]
    if not layout.quantised and only_if is None and cache.is_contiguous():
        cache.view(-1, cache.shape[2]).index_copy_(0, slots, rows.to(cache.dtype))
        return
    where = (slots // page, slots % page)
    if not layout.quantised:
        pairs = [(cache, rows.to(cache.dtype))]
    else:
        views, parts = fields(cache, layout), encode_rows(rows, layout)
        pairs = [(views.codes, parts.codes), (views.scales, parts.scales), (views.plain, parts.plain)]
    for view, new in pairs:
        view[where] = new if only_if is None else torch.where(only_if, new, view[where])
