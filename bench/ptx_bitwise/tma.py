# ruff: noqa: E501 (PTX statements that belong together stay on one line)
"""Tensor copies: ranks, element types, swizzles, interleaves, element strides, bounds and fills, im2col; loads, stores, reductions.

Shared memory is compared byte for byte after a load, global memory after a store, so that layouts are proved and not
only values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ptx_bitwise import values
from ptx_bitwise.barriers import DECLARE, WAIT, init
from ptx_bitwise.case import POISON, Buffer, Case, Map
from ptx_bitwise.regs import Kernel, words

AREA = 32768
MAP = "mov.b64 %adr, x1; cvta.param.u64 %adr, %adr;"
DTYPES = {
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "s32": (3, 4),
    "u64": (4, 8),
    "s64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32_ftz": (10, 4),
    "tf32": (11, 4),
    "tf32_ftz": (12, 4),
}
SWIZZLES = {"none": (0, 0), "32B": (1, 32), "64B": (2, 64), "128B": (3, 128)}  # the atom modes begin with sm_100


@dataclass(frozen=True)
class Tile:
    """A tensor, a box and where the box lies."""

    dtype: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: str = "none"
    steps: tuple[int, ...] = ()
    nan_fill: bool = False
    interleave: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    offsets: tuple[int, ...] = field(default=())

    @property
    def size(self) -> int:
        return DTYPES[self.dtype][1]

    def strides(self) -> tuple[int, ...]:
        """Bytes of the outer dimensions: rows padded to 16 (32 with interleave 32B)."""
        unit = 32 if self.interleave == 2 else 16
        inner = self.dims[0] * self.size if not self.interleave else 0
        found, pitch = [], max(-(-inner // unit) * unit, unit)
        for extent in self.dims[1:]:
            found.append(pitch)
            pitch *= extent
        return tuple(found)

    def bytes_total(self) -> int:
        strides = self.strides()
        return (strides[-1] * self.dims[-1] if strides else self.dims[0] * self.size) + 32

    def box_bytes(self) -> int:
        if self.lower:
            return self.box[0] * self.box[1] * self.size
        extents = [-(-b // s) for b, s in zip(self.box, self.steps or (1,) * len(self.box), strict=True)]
        extents[0] = self.box[0]
        return int(np.prod(extents)) * self.size

    def map(self) -> Map:
        return Map(
            0,
            DTYPES[self.dtype][0],
            self.dims,
            self.strides(),
            self.box,
            SWIZZLES[self.swizzle][0],
            self.steps,
            self.nan_fill,
            self.interleave,
            self.lower,
            self.upper,
        )

    @property
    def label(self) -> str:
        parts = [f"{self.dtype} {self.dims} box {self.box} at {self.at} swizzle {self.swizzle}"]
        parts += [f"steps {self.steps}"] if self.steps else []
        parts += ["nan fill"] if self.nan_fill else []
        parts += [f"interleave {16 * self.interleave}B"] if self.interleave else []
        parts += [f"corners {self.lower} {self.upper} offsets {self.offsets}"] if self.lower else []
        return " ".join(parts).replace(", ", "x").replace("(", "").replace(")", "").replace(",", "")


def tensor_data(tile: Tile, seed: int) -> np.ndarray:
    if tile.dtype.startswith(("f", "bf", "tf")):
        kind = tile.dtype.split("_")[0].replace("tf32", "f32")
        raw = values.operands([kind], f"tensor {seed}", -(-tile.bytes_total() // tile.size))[0]
        return raw.view(np.uint8)[: tile.bytes_total() // 16 * 16].copy()
    return words((-(-tile.bytes_total() // 16) * 4,), seed).view(np.uint8)


def coordinates(tile: Tile) -> str:
    return "{" + ", ".join(str(c) for c in tile.at) + "}"


def load(tile: Tile, multicast: str = "") -> Case:
    """The box into shared memory, on a background of POISON."""
    rank = len(tile.dims)
    mode = ".im2col" if tile.lower else ".tile"
    form = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
    tail = f", {{{', '.join(str(o) for o in tile.offsets)}}}" if tile.lower else ""
    body = f"""{init(1, AREA)} @%one mbarrier.arrive.expect_tx.shared.b64 %st, [%n3], {tile.box_bytes()}; {MAP}
@%one {form} [%smem], [%adr, {coordinates(tile)}], [%n3]{tail}; {WAIT} bar.sync 0;"""
    size = -(-tile.box_bytes() // 1024) * 1024
    return Kernel(
        f"{form} {tile.label}",
        form,
        body,
        image=np.full(AREA, POISON, np.uint8),
        shared_out=size,
        extra=(tile_buffer(tile, False), tile.map()),
        declare=DECLARE,
        family="tma",
        smem=AREA + 64,
        threads=128,
    ).case()


def tile_buffer(tile: Tile, out: bool) -> Buffer:
    return Buffer(tensor_data(tile, sum(tile.dims)), out, hidden=True)


def store(tile: Tile, reduce: str = "") -> Case:
    """Shared memory into the box of the tensor, plainly or by a reduction."""
    rank = len(tile.dims)
    mode = ".im2col_no_offs" if tile.lower else ".tile"
    name = (
        f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}"
        if reduce
        else f"cp.async.bulk.tensor.{rank}d.global.shared::cta"
    )
    form = f"{name}{mode}.bulk_group"
    body = f"""{MAP} setp.eq.u32 %one, %me, 0; @%one {form} [%adr, {coordinates(tile)}], [%smem]; @%one cp.async.bulk.commit_group;
@%one cp.async.bulk.wait_group 0;"""
    kind = tile.dtype.split("_")[0].replace("tf32", "f32")
    if kind in values.SPECIALS:
        image = values.operands([kind], "store" + reduce, 8192 // tile.size)[0].view(np.uint8)
    else:
        image = words((2048,), 21).view(np.uint8)
    return Kernel(
        f"{form} {tile.label}",
        form,
        body,
        image=image,
        extra=(tile_buffer(tile, True), tile.map()),
        declare=DECLARE,
        family="tma",
        threads=128,
    ).case()


def swizzled() -> Iterator[Tile]:
    """Every swizzle with every box width that it allows, and every element type."""
    for name, (_, span) in SWIZZLES.items():
        for width in {16, 32, 64, 128} & {w for w in (16, 32, 64, 128) if w <= (span or 128)}:
            yield Tile("u8", (200, 50), (width, 24), (32, 7), name)
            yield Tile("bf16", (200, 50), (width // 2, 16), (8, 9), name)
    for name, (_, size) in DTYPES.items():
        yield Tile(name, (40, 30), (64 // size, 16), (16 // size, 5), "64B")
        yield Tile(name, (256 // size, 30), (128 // size, 9), (192 // size, 24), "128B")


def shapes() -> Iterator[Tile]:
    """Ranks 1 to 5, innermost coordinates on 16 bytes (others fault); boxes that leave the tensor on every side, and boxes outside of it."""
    yield Tile("f32", (100,), (32,), (80,))
    yield Tile("f32", (100,), (32,), (-8,))
    yield Tile("u16", (60, 11, 7), (16, 4, 3), (48, 9, 5), "32B")
    yield Tile("u16", (60, 11, 7), (16, 4, 3), (-8, -2, -1), "32B")
    yield Tile("f16", (24, 6, 5, 4), (8, 3, 2, 2), (16, 4, 4, 3))
    yield Tile("s32", (12, 5, 4, 3, 3), (4, 2, 2, 2, 2), (8, 4, 3, 2, 2))
    yield Tile("s32", (12, 5, 4, 3, 3), (4, 2, 2, 2, 2), (-4, -1, -1, -1, -1))
    yield Tile("u32", (12, 5), (16, 8), (100, 1))
    yield Tile("u32", (12, 5), (256, 8), (-100, -3))
    for kind in ("f16", "bf16", "f32", "f64"):
        yield Tile(kind, (30, 9), (16, 8), (24, 5), nan_fill=True)
    for steps in ((1, 2), (1, 3)):
        yield Tile("u16", (64, 40), (16, 12), (8, 5), "32B", steps)
        yield Tile("u16", (64, 40), (16, 12), (56, 33), steps=steps)


def images() -> Iterator[Tile]:
    """im2col: NHWC tensors, pixel boxes with corners and filter offsets."""
    nhwc = (32, 9, 7, 3)
    yield Tile("f16", nhwc, (16, 32), (0, 0, 0, 0), lower=(0, 0), upper=(0, 0), offsets=(0, 0))
    yield Tile("f16", nhwc, (16, 48), (16, -1, -1, 0), lower=(-1, -1), upper=(-1, -1), offsets=(2, 1))
    yield Tile("f16", nhwc, (32, 64), (0, 3, 2, 1), "64B", lower=(-1, -1), upper=(-1, -1), offsets=(0, 2))
    yield Tile("f16", nhwc, (16, 40), (8, 2, 4, 2), "32B", lower=(-2, 0), upper=(0, -2), offsets=(1, 0))
    yield Tile("u8", (64, 20, 4), (32, 24), (0, 17, 1), "32B", lower=(-1,), upper=(-1,), offsets=(2,))
    yield Tile(
        "f32", (8, 6, 5, 4, 3), (4, 40), (4, -1, 0, -1, 1), lower=(-1, 0, -1), upper=(-1, 0, -1), offsets=(1, 0, 2)
    )
    yield Tile(
        "u16", nhwc, (16, 20), (0, -1, -1, 0), steps=(1, 2, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1)
    )


def stores() -> Iterator[Case]:
    """Stores and reductions; a negative first coordinate faults on hardware."""
    for name in SWIZZLES:
        yield store(Tile("bf16", (200, 50), (8 if name == "none" else 16, 16), (192, 40), name))
    yield store(Tile("s32", (12, 5, 4, 3, 3), (4, 2, 2, 2, 2), (8, 1, 3, 2, 2)))
    yield store(Tile("u16", (64, 40), (16, 12), (8, 5), steps=(1, 2)))
    yield store(Tile("f32", (100,), (32,), (80,)))
    for op, kinds in {
        "add": ("u32", "s32", "u64", "f16", "bf16", "f32"),
        "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
        "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
        "inc": ("u32",),
        "dec": ("u32",),
        "and": ("u32", "u64"),
        "or": ("u32", "u64"),
        "xor": ("u32", "u64"),
    }.items():
        for kind in kinds:
            size = DTYPES[kind][1]
            yield store(Tile(kind, (256 // size, 30), (128 // size, 16), (32 // size, 9), "128B"), op)


def cases() -> Iterator[Case]:
    """Every case of this family."""
    for tile in (*swizzled(), *shapes(), *images()):
        yield load(tile)
    yield from stores()
