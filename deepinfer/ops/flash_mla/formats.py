"""KV cache formats: the explicit enum, what each format's bytes mean, and views of a cache's parts.

A format is always named by the caller: several layouts share a tensor shape but not their bytes. A cache is a tensor
[blocks, page, d] (plain formats) or uint8 [blocks, page, token_bytes] (quantised ones). In *interleaved* formats the
last dimension is one token's record. In *split* formats a block holds all data rows, then all scale rows; its last two
dimensions are then only a frame for the block's bytes and must be contiguous. Blocks may lie any distance apart.

Mirrored by include/deepinfer/kv_format.h; a test compares both. Layout facts: the formats of FlashMLA 1.0 and the
DeepSeek V3.2 / V4 / V4.1 caches.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

from deepinfer.errors import invalid

PLAIN_BYTES = 2  # un-quantised channels inside a quantised record are bf16


class KVFormat(enum.Enum):
    """How latent rows lie in a cache. The values are the canonical strings of op calls."""

    F32 = "f32"
    BF16 = "bf16"
    V32_FP8 = "v32_fp8"
    V4_FP8 = "v4_fp8"
    V41_FP8 = "v41_fp8"
    V41_FP8_PAGED = "v41_fp8_paged"
    V41_FP4 = "v41_fp4"
    V41_FP4_PAGED = "v41_fp4_paged"
    INDEX_FP4 = "index_fp4"
    INDEX_FP8 = "index_fp8"


@dataclass(frozen=True)
class Layout:
    """Byte facts of one format.

    Attributes:
        format: the format described.
        code: its number in kv_format.h.
        dtype: element type of the cache tensor.
        width: channels of a row; 0 = any (plain formats).
        coded: quantised channels, first in the row; `plain` bf16 channels follow.
        bits: bits per quantised channel: 8 = e4m3, 4 = e2m1 (even channel in the low nibble).
        tile: quantised channels that share one scale.
        scale_kind: "f32" (used as stored), "ue8m0" or "e4m3".
        split: data rows and scale rows are kept apart inside a block.
        scale_pad: unused bytes at the end of a scale row.
        multiple: freshly allocated blocks are padded to a multiple of this many bytes.
    """

    format: KVFormat
    code: int
    dtype: torch.dtype = torch.uint8
    width: int = 0
    coded: int = 0
    plain: int = 0
    bits: int = 8
    tile: int = 0
    scale_kind: str = ""
    split: bool = False
    scale_pad: int = 0
    multiple: int = 1

    @property
    def quantised(self) -> bool:
        return self.tile > 0

    @property
    def code_bytes(self) -> int:
        return self.coded * self.bits // 8

    @property
    def plain_bytes(self) -> int:
        return self.plain * PLAIN_BYTES

    @property
    def scale_bytes(self) -> int:
        return self.coded // self.tile * (4 if self.scale_kind == "f32" else 1) if self.tile else 0

    @property
    def data_bytes(self) -> int:
        """Bytes of a data row of a split block."""
        return self.code_bytes + self.plain_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes per token, block padding not counted; 0 for plain formats."""
        return self.data_bytes + self.scale_bytes + self.scale_pad

    def block_bytes(self, page: int) -> int:
        """Bytes from one freshly allocated block of `page` tokens to the next."""
        return -(-page * self.token_bytes // self.multiple) * self.multiple


_F = KVFormat
_ALL = (
    Layout(_F.F32, 0, torch.float32),
    Layout(_F.BF16, 1, torch.bfloat16),
    Layout(_F.V32_FP8, 2, width=576, coded=512, plain=64, tile=128, scale_kind="f32", multiple=656),
    Layout(_F.V4_FP8, 3, width=512, coded=448, plain=64, tile=64, scale_kind="ue8m0", split=True, scale_pad=1,
           multiple=576),
    Layout(_F.V41_FP8, 4, width=512, coded=512, tile=32, scale_kind="ue8m0", multiple=528),
    Layout(_F.V41_FP8_PAGED, 5, width=512, coded=512, tile=32, scale_kind="ue8m0", split=True, multiple=512),
    Layout(_F.V41_FP4, 6, width=512, coded=512, bits=4, tile=16, scale_kind="e4m3", multiple=288),
    Layout(_F.V41_FP4_PAGED, 7, width=512, coded=512, bits=4, tile=16, scale_kind="e4m3", split=True, multiple=256),
    Layout(_F.INDEX_FP4, 8, width=128, coded=128, bits=4, tile=32, scale_kind="ue8m0", split=True,
           multiple=math.lcm(32, 68)),
    Layout(_F.INDEX_FP8, 9, width=128, coded=128, tile=128, scale_kind="f32", split=True, multiple=math.lcm(32, 132)),
)
LAYOUTS: dict[str, Layout] = {layout.format.value: layout for layout in _ALL}


def format_name(op: str, arg: str, value: object) -> str:
    """The canonical string of a `KVFormat` (or of its string); anything else is refused by name."""
    if isinstance(value, KVFormat):
        return value.value
    if isinstance(value, str) and value in LAYOUTS:
        return value
    raise invalid(f"{op}: {arg}", value, f"must be a KVFormat ({', '.join(LAYOUTS)})", nearest="KVFormat.BF16")


def cache_shape(format: KVFormat | str, blocks: int, page: int, d: int = 0) -> tuple[tuple[int, int, int], torch.dtype]:
    """Shape and dtype of a cache tensor: [blocks, page, d] or uint8 [blocks, page, token_bytes].

    Args:
        format: the cache format.
        blocks: number of blocks, >= 0.
        page: tokens per block, >= 1.
        d: channels of a row; needed by plain formats, must be 0 or the format's own width otherwise.

    Returns:
        ((blocks, page, d or bytes per token), dtype).

    Raises:
        InvalidArgument: a size is out of range.

    Source: the byte layouts of this module.

    Example:
        >>> cache_shape(KVFormat.V32_FP8, blocks=4, page=64)
        ((4, 64, 656), torch.uint8)
    """
    layout = LAYOUTS[format_name("cache_shape", "format", format)]
    if blocks < 0:
        raise invalid("cache_shape: blocks", blocks, "must be >= 0", nearest=0)
    if page < 1:
        raise invalid("cache_shape: page", page, "must be >= 1", nearest=1)
    if not layout.quantised:
        if d < 1:
            raise invalid("cache_shape: d", d, f"must be >= 1 for {layout.format.name}", nearest=576)
        return (blocks, page, d), layout.dtype
    if d not in (0, layout.width):
        raise invalid("cache_shape: d", d, f"must be the width of {layout.format.name}", nearest=layout.width)
    return (blocks, page, layout.token_bytes), layout.dtype


def new_cache(
    format: KVFormat | str, blocks: int, page: int, d: int = 0, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A zeroed cache of `cache_shape`, its blocks padded as the format asks (so stride(0) may exceed page * bytes).

    Args:
        format, blocks, page, d: as for `cache_shape`.
        device: torch device of the tensor.

    Returns:
        [blocks, page, d] or uint8 [blocks, page, bytes].

    Raises:
        InvalidArgument: as `cache_shape`.

    Source: the byte layouts of this module.

    Example:
        >>> cache = new_cache(KVFormat.V4_FP8, blocks=2, page=64)
        >>> cache.shape, cache.stride(0) % 576
        (torch.Size([2, 64, 584]), 0)
    """
    shape, dtype = cache_shape(format, blocks, page, d)
    layout = LAYOUTS[format_name("new_cache", "format", format)]
    if not layout.quantised:
        return torch.zeros(shape, dtype=dtype, device=device)
    raw: torch.Tensor = torch.zeros((blocks, layout.block_bytes(page)), dtype=dtype, device=device)
    return raw[:, : page * layout.token_bytes].view(blocks, page, layout.token_bytes)


@dataclass(frozen=True)
class Fields:
    """uint8 views [blocks, page, bytes] of a quantised cache; `plain` has 0 bytes when the format has no such part."""

    codes: torch.Tensor
    scales: torch.Tensor
    plain: torch.Tensor


def cut_record(records: torch.Tensor, layout: Layout) -> Fields:
    """Views of the parts of interleaved records [..., token_bytes]: codes | scales | plain."""
    scales = layout.code_bytes + layout.scale_bytes
    return Fields(records[..., : layout.code_bytes], records[..., layout.code_bytes : scales], records[..., scales:])


def fields(cache: torch.Tensor, layout: Layout) -> Fields:
    """Views of the parts of a quantised cache [blocks, page, token_bytes]; writing to them writes the cache."""
    codes, scales = layout.code_bytes, layout.scale_bytes
    if not layout.split:
        return cut_record(cache, layout)
    blocks, page, _ = cache.shape
    raw = cache.flatten(1)
    data = raw[:, : page * layout.data_bytes].view(blocks, page, layout.data_bytes)
    tail = raw[:, page * layout.data_bytes :].view(blocks, page, scales + layout.scale_pad)
    return Fields(data[..., :codes], tail[..., :scales], data[..., codes:])
