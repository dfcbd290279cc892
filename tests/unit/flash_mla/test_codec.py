"""KV codecs to the bit against numpy and ml_dtypes, every format: writing, reading, skipped slots, hard values."""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
import torch

from deepinfer.conformance.compare import same_bits
from deepinfer.ops.flash_mla import kv_cache_read, kv_cache_write, new_cache
from deepinfer.ops.flash_mla.cache_cases import HARD
from deepinfer.ops.flash_mla.formats import LAYOUTS, fields

QUANTISED = sorted(name for name, layout in LAYOUTS.items() if layout.quantised)
KINDS = ("normal", "wide", "tiny", "zero", "hard", "ties")


def make_rows(kind: str, n: int, width: int, g: torch.Generator) -> torch.Tensor:
    rows = torch.randn(n, width, generator=g)
    if kind == "wide":
        rows = rows * 2.0 ** torch.randint(-60, 60, rows.shape, generator=g)
    elif kind == "tiny":
        rows = rows * 2.0 ** torch.randint(-149, -100, rows.shape, generator=g)
    elif kind == "zero":
        rows[:, ::2] = 0.0
        rows[0] = 0.0
        rows[1] = -0.0
    elif kind == "hard":
        rows = torch.tensor(HARD)[torch.randint(len(HARD), rows.shape, generator=g)]
    elif kind == "ties":  # exact multiples of 1/16 below a block maximum that makes the scale a power of two
        rows = torch.randint(-96, 97, rows.shape, generator=g) / 16
        rows[:, ::16] = 6.0
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", QUANTISED)
def test_written_bytes(name: str, kind: str, oracle: ModuleType) -> None:
    layout, page = LAYOUTS[name], 3
    g = torch.Generator().manual_seed(KINDS.index(kind))
    for dtype in (torch.float32, torch.bfloat16):
        rows = make_rows(kind, 6, layout.width, g).to(dtype)
        rows = torch.where(rows.isfinite(), rows, torch.finfo(dtype).max)
        cache = new_cache(name, 2, page)
        cache.copy_(torch.randint(256, cache.shape, generator=g, dtype=torch.uint8))
        before = cache.clone()
        kv_cache_write(cache, rows, torch.arange(6), format=name)
        for b in range(2):
            tails = before[b].flatten()[page * layout.data_bytes :].view(page, -1) if layout.split else before[b]
            pads = tails[:, -1].tolist()
            wanted = oracle.block(name, [rows[b * page + i].float().numpy() for i in range(page)], pads)
            got = bytes(cache[b].flatten().tolist())
            assert got == wanted, (name, kind, dtype, b, [i for i in range(len(wanted)) if got[i] != wanted[i]][:5])


@pytest.mark.parametrize("name", QUANTISED)
def test_read_values(name: str) -> None:
    """Random bytes decode to code * scale, worked out with ml_dtypes in float64."""
    layout = LAYOUTS[name]
    g = torch.Generator().manual_seed(5)
    cache = new_cache(name, 2, 4)
    cache.copy_(torch.randint(256, cache.shape, generator=g, dtype=torch.uint8))
    views = fields(cache, layout)
    if layout.scale_kind == "f32":
        views.scales.copy_(torch.rand(2, 4, views.scales.shape[2] // 4, generator=g).view(torch.uint8))
    elif layout.scale_kind == "ue8m0":  # products must fit float32
        views.scales.copy_(torch.randint(0, 200, views.scales.shape, generator=g, dtype=torch.uint8))
    views.plain.copy_(torch.randn(2, 4, layout.plain, generator=g).bfloat16().view(torch.uint8))
    raw, scales = views.codes.numpy(), views.scales.contiguous().numpy()
    if layout.bits == 8:
        codes = raw.copy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    else:
        nibbles = np.stack((raw & 15, raw >> 4), -1).reshape(*raw.shape[:2], -1)
        codes = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    kinds = {"f32": np.float32, "ue8m0": ml_dtypes.float8_e8m0fnu, "e4m3": ml_dtypes.float8_e4m3fn}
    factor = scales.view(kinds[layout.scale_kind]).astype(np.float64)
    wanted = codes * np.repeat(factor, layout.tile, axis=-1)
    if layout.plain:
        plain = views.plain.contiguous().numpy().view(ml_dtypes.bfloat16).astype(np.float64)
        wanted = np.concatenate((wanted, plain), -1)
    got = kv_cache_read(cache, torch.arange(8), format=name).double().numpy().reshape(wanted.shape)
    np.testing.assert_array_equal(got, wanted.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_round_trip_error(name: str) -> None:
    """What comes back is within half a step of the format of what went in (C32: the payload uses the stored scale)."""
    layout = LAYOUTS[name]
    width = layout.width or 576
    rows = torch.randn(32, width, generator=torch.Generator().manual_seed(3)).bfloat16().float()
    cache = new_cache(name, 4, 8, 0 if layout.quantised else width)
    kv_cache_write(cache, rows, torch.arange(32), format=name)
    back = kv_cache_read(cache, torch.arange(32), format=name)
    if not layout.quantised:
        assert torch.equal(back, rows)
        return
    tiles = rows[:, : layout.coded].view(32, -1, layout.tile)
    error = (back[:, : layout.coded].view(tiles.shape) - tiles).abs()
    top = tiles.abs().amax(-1, keepdim=True)
    # Steps: e4m3 at most 2^-3 of the value (half: 2^-4); e2m1 2 of 6 at the top, half of that, and a scale that may be
    # up to twice (UE8M0) or 1/16 (e4m3) too large.
    coarse = top * (0.34 if layout.scale_kind == "ue8m0" else 0.19)
    bound = tiles.abs() * 2**-4 + top * 2**-9 if layout.bits == 8 else coarse
    assert bool((error <= bound).all())
    assert torch.equal(back[:, layout.coded :], rows[:, layout.coded :])


@pytest.mark.parametrize("name", QUANTISED)
def test_broken_tiles(name: str) -> None:
    """NaN or inf in a tile makes that tile NaN, its neighbours stay as they are."""
    layout = LAYOUTS[name]
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows = torch.ones(1, layout.width)
        rows[0, layout.tile - 1] = bad
        cache = new_cache(name, 1, 1)
        kv_cache_write(cache, rows, torch.tensor([0]), format=name)
        back = kv_cache_read(cache, torch.tensor([0]), format=name)[0]
        assert back[: layout.tile].isnan().all()
        rest = back[layout.tile :]
        assert bool(((rest - 1).abs() < 0.1).all())
        if layout.bits == 8:
            assert fields(cache, layout).codes[0, 0, : layout.tile].eq(0x7F).all()


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_layout_of_rows_does_not_matter(name: str) -> None:
    """Transposed, strided and empty rows give the bytes of dense ones."""
    width = LAYOUTS[name].width or 32
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(2))
    rows[2, -1] = torch.nan
    others = (rows.T.contiguous().T, torch.stack((rows, rows), -1).flatten(1)[:, ::2], rows[:0].T.contiguous().T)
    for other in others:
        n = len(other)
        pair = [new_cache(name, 2, 3, 0 if LAYOUTS[name].quantised else width) for _ in range(2)]
        for cache, source in zip(pair, (rows[:n], other), strict=True):
            kv_cache_write(cache, source, torch.arange(n), format=name)
        assert same_bits(name, pair[0], pair[1]) == []


def test_scales_are_used_as_stored() -> None:
    """V32 scales that are no powers of two (C16)."""
    cache = new_cache("v32_fp8", 1, 1)
    cache[0, 0, :512] = torch.ones(512).to(torch.float8_e4m3fn).view(torch.uint8)
    cache[0, 0, 512:528] = torch.tensor([0.3, 1.7, 1e-6, 448.0]).view(torch.uint8)
    row = kv_cache_read(cache, torch.tensor([0]), format="v32_fp8")[0]
    assert row[:512:128].tolist() == torch.tensor([0.3, 1.7, 1e-6, 448.0]).tolist()


def test_large_rope_is_not_clipped() -> None:
    """Small latents beside large rope channels: every format keeps the rope part (C23)."""
    rows = torch.cat((torch.full((1, 512), 0.05), torch.full((1, 64), 1.0)), 1)
    for name in ("v32_fp8", "v4_fp8", "v41_fp8", "v41_fp8_paged"):
        x = rows if LAYOUTS[name].width == 576 else rows[:, 64:]
        cache = new_cache(name, 1, 1)
        kv_cache_write(cache, x, torch.tensor([0]), format=name)
        back = kv_cache_read(cache, torch.tensor([0]), format=name)
        assert bool(((back - x).abs() <= x.abs() * 2**-4).all()), name


def test_skipped_rows_and_other_bytes() -> None:
    """Slots -1 and beyond the pool skip; no byte outside the written rows changes, padding included."""
    for name, layout in LAYOUTS.items():
        cache = new_cache(name, 3, 4, 0 if layout.quantised else 32)
        cache.copy_(torch.full(cache.shape, 77).to(cache.dtype))
        before = cache.clone()
        rows = torch.full((4, layout.width or 32), torch.nan)
        rows[1] = 1.0
        kv_cache_write(cache, rows, torch.tensor([-1, 5, 12, 2**31 - 1]), format=name)
        changed = (cache != before).nonzero()
        assert changed[:, 0].unique().tolist() == [1], name
        back = kv_cache_read(cache, torch.tensor([5, 12, -1]), format=name)
        assert (back[0] - 1).abs().max() < 0.1
        assert back[1:].eq(0).all()


def test_two_turns_through_a_quantised_cache() -> None:
    """Rows written in a first turn read back unchanged after a second turn was appended (C24)."""
    g = torch.Generator().manual_seed(9)
    for name in QUANTISED:
        width = LAYOUTS[name].width
        cache = new_cache(name, 4, 16)
        first, second = torch.randn(20, width, generator=g), torch.randn(30, width, generator=g)
        kv_cache_write(cache, first, torch.arange(20), format=name)
        early = kv_cache_read(cache, torch.arange(20), format=name)
        kv_cache_write(cache, second, torch.arange(20, 50), format=name)
        assert torch.equal(kv_cache_read(cache, torch.arange(20), format=name), early), name
        again = new_cache(name, 4, 16)
        kv_cache_write(again, early, torch.arange(20), format=name)
        drift = (kv_cache_read(again, torch.arange(20), format=name) - early).abs()
        assert float((drift / (early.abs() + 1e-3)).max()) < 0.26, name
