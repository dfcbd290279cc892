"""Tensor maps: the description of a tile-shaped access that TMA instructions take (cuTensorMapEncodeTiled).

`TileMap` states what is wanted and checks it against the hardware's rules; `encode_hardware` asks the driver for the
128 opaque bytes. A simulated device encodes the same `TileMap` in its own way (driver extension).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.errors import invalid

# torch dtype -> (name in CUtensorMapDataType, bytes of one element)
DTYPES: dict[torch.dtype, tuple[str, int]] = {
    torch.uint8: ("UINT8", 1),
    torch.float8_e4m3fn: ("UINT8", 1),
    torch.float8_e5m2: ("UINT8", 1),
    torch.int32: ("INT32", 4),
    torch.float32: ("FLOAT32", 4),
    torch.float16: ("FLOAT16", 2),
    torch.bfloat16: ("BFLOAT16", 2),
}
PACKED_FP4 = ("16U4_ALIGN8B", "16U4_ALIGN16B")  # packed in shared memory | spread to one byte per element
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


@dataclass(frozen=True)
class TileMap:
    """A tensor in device memory and the box one TMA instruction moves, innermost dimension first.

    Attributes:
        address: device address, 16-byte aligned.
        dtype: name without prefix, as in DTYPES or PACKED_FP4.
        itemsize: bytes of one element (fp4 types: use 1 and count packed pairs in `strides` only).
        sizes: elements per dimension, innermost first, 1 to 5 of them.
        strides: bytes per step of each dimension but the innermost, multiples of 16 below 2^40.
        box: elements moved per dimension, 1 to 256 each.
        swizzle: 0, 32, 64 or 128 bytes; the box's inner extent must not exceed it.
    """

    address: int
    dtype: str
    itemsize: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        rank = len(self.sizes)
        if not 1 <= rank <= 5 or len(self.box) != rank or len(self.strides) != rank - 1:
            raise invalid("TileMap.sizes", self.sizes, "must have 1 to 5 dimensions, with a box and strides to match")
        if self.address % 16:
            raise invalid("TileMap.address", hex(self.address), "must be 16-byte aligned")
        for stride in self.strides:
            if stride % 16 or not 0 < stride < 1 << 40:
                raise invalid("TileMap.strides", self.strides, "must be multiples of 16 bytes below 2^40")
        if min(self.sizes) < 1 or max(self.sizes) > 1 << 32:
            raise invalid("TileMap.sizes", self.sizes, "must lie in [1, 2^32]")
        self._check_box()

    def _check_box(self) -> None:
        if min(self.box) < 1 or max(self.box) > 256:
            raise invalid("TileMap.box", self.box, "must lie in [1, 256]", nearest=256)
        if self.swizzle not in SWIZZLES:
            raise invalid("TileMap.swizzle", self.swizzle, f"must be one of {tuple(SWIZZLES)}", nearest=128)
        inner = self.box[0] * self.itemsize
        if self.dtype not in PACKED_FP4 and inner % 16:
            raise invalid("TileMap.box[0]", inner, "must span a multiple of 16 bytes", nearest=(inner + 15) // 16 * 16)
        if self.swizzle and inner > self.swizzle:
            raise invalid("TileMap.box[0]", inner, f"must not exceed the swizzle of {self.swizzle} bytes")


def slab_map(tensor: torch.Tensor, rows: int, cols: int, swizzle: int = 128) -> TileMap:
    """Map of a [G, M, N] tensor (or [M, N] as one slab) with unit stride in N and a box of 1 x `rows` x `cols`.

    Strides of dimensions of size 1 do not matter; they are replaced by legal ones.
    """
    name, itemsize = DTYPES[tensor.dtype]
    sizes = (tensor.shape[-1], tensor.shape[-2], tensor.shape[0] if tensor.ndim == 3 else 1)
    dense = (sizes[0] * itemsize + 15) // 16 * 16
    pitch = tensor.stride(-2) * itemsize if sizes[1] > 1 else dense
    slab = tensor.stride(0) * itemsize if sizes[2] > 1 else pitch
    return TileMap(tensor.data_ptr(), name, itemsize, sizes, (pitch, slab), (cols, rows, 1), swizzle)


# Values of CUtensorMapDataType and CUtensorMapSwizzle in cuda.h, for encoders other than the driver's.
_CODES = {
    "UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 9, "16U4_ALIGN8B": 13, "16U4_ALIGN16B": 14,
}
_SWIZZLE_CODES = {0: 0, 32: 1, 64: 2, 128: 3}


def map_codes(tile: TileMap) -> tuple[int, int]:
    """(data type, swizzle) as numbers."""
    return _CODES[tile.dtype], _SWIZZLE_CODES[tile.swizzle]


def encode_hardware(tile: TileMap) -> bytes:
    """The driver's 128 bytes for `tile`."""
    from cuda.bindings import driver as cu

    from deepinfer_cuda.result import check

    rank = len(tile.sizes)
    encoded = check(
        "cuTensorMapEncodeTiled",
        cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tile.dtype}"),
            rank,
            tile.address,
            [cu.cuuint64_t(size) for size in tile.sizes],
            [cu.cuuint64_t(stride) for stride in tile.strides],
            [cu.cuuint32_t(extent) for extent in tile.box],
            [cu.cuuint32_t(1)] * rank,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[tile.swizzle]}"),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
    )
    return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)
