"""Inputs for the cases of this family: queries, caches, tables, index lists, lengths, sinks, odd layouts, poison.

Distributions follow the public kernel tests: q ~ N clamped to +-1, cached rows ~ N/10 clamped to +-1, sinks with a
third each of +inf and -inf. Invariant: everything is a pure function of the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from deepinfer.ops.flash_mla.attend import page_slots
from deepinfer.ops.flash_mla.codec import NAN_SCALE, write_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS, Fields, Layout, fields, new_cache

Gen = torch.Generator
Maker = Callable[[torch.Generator], dict[str, Any]]
HOLES = ("front", "middle", "end", "random", "all", "wild")
INT32_GARBAGE = (2147480000, -2147483648, -1, 114514, 2147483647, -123456)


def queries(shape: Sequence[int], dtype: torch.dtype, g: Gen) -> torch.Tensor:
    """q ~ N clamped to +-1."""
    return torch.randn(tuple(shape), generator=g).clamp_(-1, 1).to(dtype)


def rows(n: int, d: int, g: Gen) -> torch.Tensor:
    """Latent rows ~ N/10 clamped to +-1, float32 (already bf16 values, as a model writes them)."""
    return (torch.randn((n, d), generator=g) / 10).clamp_(-1, 1).bfloat16().float()


def cache(name: str, blocks: int, page: int, d: int, g: Gen, strided: bool = False) -> torch.Tensor:
    """A full cache of random rows; `strided` adds unused rows (or bytes) between the blocks."""
    layout = LAYOUTS[name]
    made = new_cache(name, blocks, page, 0 if layout.quantised else d)
    if blocks:
        write_slots(made, layout, rows(blocks * page, layout.width or d, g), torch.arange(blocks * page))
    return apart(made, layout) if strided else made


def apart(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same cache with a gap of one row after each block (and after each row of a plain format)."""
    blocks, page, width = tensor.shape
    row = width if layout.quantised else width + 128
    wide = tensor.new_zeros((blocks, (page + 1) * row))
    view = wide.as_strided(tensor.shape, (wide.stride(0), row, 1))
    return view.copy_(tensor)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps in every outer dimension; the last dimension stays contiguous."""
    sizes = [size + 1 for size in tensor.shape[:-1]]
    wide = tensor.new_zeros((*sizes, tensor.shape[-1] + 128))
    return wide[tuple(slice(0, size) for size in tensor.shape)].copy_(tensor)


def every_other(tensor: torch.Tensor) -> torch.Tensor:
    """The same integers as a [::2] slice, last stride 2."""
    return torch.stack((tensor, torch.full_like(tensor, 7)), dim=-1).flatten(-2)[..., ::2]


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same integers as a transposed view (2 or more dimensions)."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.ndim > 1 else every_other(tensor)


def arrange(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """Index tensors in layout `how`: "dense", "strided" (every other) or "turned"."""
    return tensor if how == "dense" else every_other(tensor) if how == "strided" else turned(tensor)


def table(lens: Sequence[int], page: int, blocks: int, columns: int, g: Gen) -> torch.Tensor:
    """A block table [b, columns] whose used entries are distinct random blocks; the rest is 0."""
    order = torch.randperm(blocks, generator=g)
    result = torch.zeros(len(lens), columns, dtype=torch.int64)
    at = 0
    for r, length in enumerate(lens):
        used = min(-(-max(length, 0) // page), columns)
        result[r, :used] = order[at : at + used]
        at += used
    return result


def indices(shape: Sequence[int], capacity: int, g: Gen, holes: str = "none") -> torch.Tensor:
    """Slots [..., K] without repetition inside a row (with, once K exceeds the capacity).

    `holes` puts -1 or out-of-range values: "front", "middle", "end", "random", "all", "wild", "none".
    """
    *lead, top = shape
    count = 1
    for size in lead:
        count *= size
    if capacity == 0 or top == 0 or count == 0:
        return torch.full(tuple(shape), -1, dtype=torch.int64)
    draws = [torch.randperm(capacity, generator=g)[:top] for _ in range(count)]
    flat = torch.stack([draw.repeat(-(-top // len(draw)))[:top] for draw in draws])
    return _punch(flat, capacity, g, holes).view(tuple(shape))


def _punch(flat: torch.Tensor, capacity: int, g: Gen, holes: str) -> torch.Tensor:
    top = flat.shape[1]
    third = max(top // 3, 1)
    if holes in ("front", "middle", "end"):
        first = {"front": 0, "middle": (top - third) // 2, "end": top - third}[holes]
        flat[:, first : first + third] = -1
    elif holes == "all":
        flat[:] = -1
    elif holes in ("random", "wild"):
        wild = torch.tensor([-1] if holes == "random" else [*INT32_GARBAGE, capacity, capacity + 1])
        pick = wild[torch.randint(len(wild), flat.shape, generator=g)]
        # A garbage value that happens to be a slot of this pool would be a key like any other.
        pick = torch.where((pick >= 0) & (pick < capacity), -1, pick)
        flat = torch.where(torch.rand(flat.shape, generator=g) < 0.4, pick, flat)
    return flat


def infinite_logits(make: Maker, keys: str, g: Gen) -> dict[str, Any]:
    """A case of 4 heads or more whose first token has logits of -inf (head 0), +inf (1), both or NaN (2); head 3 and
    all other tokens are finite. `keys` names the un-quantised keys."""
    args = make(g)
    args[keys][..., 0] = args[keys][..., 0].abs() + 0.5
    first = args["q"][(0,) * (args["q"].ndim - 2)]
    first[0, 0], first[1, 0], first[2, 0], first[2, 1] = -torch.inf, torch.inf, -torch.inf, torch.inf
    sink = torch.zeros(first.shape[0])
    sink[0], sink[2] = -torch.inf, torch.inf
    return args | {"attn_sink": sink}


def large_queries(make: Maker, g: Gen) -> dict[str, Any]:
    """A case with queries of several hundreds, whose softmax picks nearly one key."""
    args = make(g)
    return args | {"q": args["q"] * 300.0}


def sinks(kind: str, heads: int, g: Gen) -> torch.Tensor | None:
    """Sink logits [h]: "none", "mixed" (a third +inf, a third -inf), "+inf", "-inf", "normal"."""
    if kind == "none":
        return None
    if kind in ("+inf", "-inf"):
        return torch.full((heads,), float(kind))
    values = torch.randn(heads, generator=g)
    if kind == "mixed":
        which = torch.randint(3, (heads,), generator=g)
        values = torch.where(which == 1, torch.inf, torch.where(which == 2, -torch.inf, values))
    return values


def dtype_of(name: str) -> torch.dtype:
    """Dtype of the queries that go with cache format `name` in the cases."""
    return torch.float32 if name == "f32" else torch.bfloat16


def surround(tensor: torch.Tensor | None) -> Any:
    """The same tensor inside memory whose other elements are NaN (floats) or large (integers, bytes 0xFF)."""
    if tensor is None or tensor.numel() == 0:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    fill = torch.nan if tensor.is_floating_point() else 255 if tensor.dtype is torch.uint8 else 2147480000
    memory = torch.full((span + 64,), fill, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), 32).copy_(tensor)


def poisoned_cache(original: torch.Tensor, name: str, used: torch.Tensor) -> torch.Tensor:
    """A copy of a cache that keeps only slots `used` [n]; every other byte, gaps included, becomes NaN (0xFF)."""
    layout = LAYOUTS[name]
    if original.numel() == 0:
        return original
    span = 1 + sum((size - 1) * stride for size, stride in zip(original.shape, original.stride(), strict=True))
    fill = 255 if layout.quantised else torch.nan
    memory = torch.full((span + 64,), fill, dtype=original.dtype)
    made = memory.as_strided(original.shape, original.stride(), 32)
    page = original.shape[1]
    at = (used // page, used % page)
    for old, new in zip(_parts(original, layout), _parts(made, layout), strict=True):
        new[at] = old[at]
    return made


def poisoned_pages(
    block_table: torch.Tensor, seq_lens: torch.Tensor, pages: torch.Tensor, name: str, g: Gen
) -> tuple[torch.Tensor, torch.Tensor]:
    """A table with garbage past each length, and a cache that keeps only the slots which the lengths reach."""
    blocks, page = pages.shape[:2]
    used = [torch.zeros(0, dtype=torch.int64)]
    dirty = block_table.clone()
    for r in range(block_table.shape[0]):
        slots, exists = page_slots(block_table[r], int(seq_lens[r]), blocks, page)
        used.append(slots[exists])
        reach = -(-slots.shape[0] // page)
        dirty[r, reach:] = garbage((block_table.shape[1] - reach,), g).to(block_table.dtype)
    return dirty, poisoned_cache(pages, name, torch.cat(used))


def _parts(tensor: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
    if not layout.quantised:
        return (tensor,)
    views: Fields = fields(tensor, layout)
    return views.codes, views.scales, views.plain


def garbage(shape: Sequence[int], g: Gen) -> torch.Tensor:
    """int64 numbers that are never legal as a slot or a block, all within int32."""
    return torch.tensor(INT32_GARBAGE)[torch.randint(len(INT32_GARBAGE), tuple(shape), generator=g)]


def make_noise(tensor: torch.Tensor, name: str, g: Gen) -> None:
    """Fill a cache with every kind of code and scale byte, NaN included, within what float32 products can hold."""
    layout = LAYOUTS[name]
    if not layout.quantised:
        tensor.copy_(torch.randn(tensor.shape, generator=g) * 2.0 ** torch.randint(-30, 30, tensor.shape, generator=g))
        return
    views = fields(tensor, layout)
    views.codes.copy_(torch.randint(256, views.codes.shape, generator=g, dtype=torch.uint8))
    views.plain.copy_(torch.randn((*tensor.shape[:2], layout.plain), generator=g).bfloat16().view(torch.uint8))
    shape = views.scales.shape
    if layout.scale_kind == "f32":
        scales = torch.rand((*shape[:2], shape[2] // 4), generator=g).add_(0.1) * 3
        views.scales.copy_(scales.masked_fill(torch.rand(scales.shape, generator=g) < 0.1, torch.nan).view(torch.uint8))
        return
    low, high = (1, 180) if layout.scale_kind == "ue8m0" else (0, 256)
    scales = torch.randint(low, high, shape, generator=g, dtype=torch.uint8)
    broken = NAN_SCALE[layout.scale_kind]
    views.scales.copy_(scales.masked_fill(torch.rand(shape, generator=g) < 0.1, broken))
