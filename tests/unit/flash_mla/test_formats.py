"""KV formats: byte facts, the C header, allocation, views, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import KVFormat, cache_shape, new_cache, slots_of
from deepinfer.ops.flash_mla.formats import LAYOUTS, fields, format_name

HEADER = Path(__file__).parents[3] / "include" / "deepinfer" / "kv_format.h"
SCALE_KINDS = {"": "NONE", "f32": "F32", "ue8m0": "UE8M0", "e4m3": "E4M3"}
BYTES = {
    KVFormat.V32_FP8: 656, KVFormat.V4_FP8: 584, KVFormat.V41_FP8: 528, KVFormat.V41_FP8_PAGED: 528,
    KVFormat.V41_FP4: 288, KVFormat.V41_FP4_PAGED: 288, KVFormat.INDEX_FP4: 68, KVFormat.INDEX_FP8: 132,
}


def test_token_bytes() -> None:
    assert {name: LAYOUTS[name.value].token_bytes for name in BYTES} == BYTES
    assert set(LAYOUTS) == {member.value for member in KVFormat}


def test_block_padding() -> None:
    """Sizes worked out by hand from the format descriptions."""
    v4, fp4 = LAYOUTS["v4_fp8"], LAYOUTS["v41_fp4_paged"]
    assert [v4.block_bytes(page) for page in (1, 64, 256)] == [1152, 37440, 149760]
    assert [fp4.block_bytes(page) for page in (1, 2, 64)] == [512, 768, 18432]
    assert LAYOUTS["v41_fp8_paged"].block_bytes(64) == 64 * 528
    assert LAYOUTS["index_fp4"].block_bytes(64) == 4352
    assert LAYOUTS["v32_fp8"].block_bytes(5) == 5 * 656


def test_header_says_the_same() -> None:
    rows = re.findall(r"X\((\w+), ([^)]*)\)", HEADER.read_text().replace("\\\n", ""))
    found = {name: [cell.strip() for cell in cells.split(",")] for name, cells in rows if name != "name"}
    assert set(found) == {member.name for member in KVFormat}
    for layout in LAYOUTS.values():
        wanted = [
            layout.code, layout.width, layout.coded, layout.plain, layout.bits, layout.tile,
            "DI_KV_SCALE_" + SCALE_KINDS[layout.scale_kind], int(layout.split), layout.scale_pad, layout.token_bytes,
            layout.multiple,
        ]
        assert found[layout.format.name] == [str(cell) for cell in wanted]
    assert [layout.code for layout in LAYOUTS.values()] == list(range(len(LAYOUTS)))


def test_shapes() -> None:
    assert cache_shape(KVFormat.BF16, 3, 16, 576) == ((3, 16, 576), torch.bfloat16)
    assert cache_shape(KVFormat.F32, 0, 1, 8) == ((0, 1, 8), torch.float32)
    assert cache_shape("v4_fp8", 3, 16, 512) == ((3, 16, 584), torch.uint8)
    for name, layout in LAYOUTS.items():
        cache = new_cache(name, 2, 5, 0 if layout.quantised else 24)
        assert (tuple(cache.shape), cache.dtype) == cache_shape(name, 2, 5, 0 if layout.quantised else 24)
        assert cache.stride(0) * cache.element_size() % layout.multiple == 0


@pytest.mark.parametrize(
    ("args", "mentions"),
    [
        ((KVFormat.BF16, 1, 0, 8), "page"), ((KVFormat.BF16, -1, 1, 8), "blocks"), ((KVFormat.BF16, 1, 1), "d"),
        ((KVFormat.V4_FP8, 1, 1, 576), "512"), (("fp8", 1, 1), "KVFormat"), ((None, 1, 1), "KVFormat"),
    ],
)
def test_bad_shapes(args: tuple, mentions: str) -> None:
    with pytest.raises(InvalidArgument, match=mentions):
        cache_shape(*args)


def test_format_names() -> None:
    assert format_name("op", "format", KVFormat.V41_FP4) == "v41_fp4" == format_name("op", "format", "v41_fp4")


@pytest.mark.parametrize("name", sorted(name for name, layout in LAYOUTS.items() if layout.quantised))
def test_fields_cover_the_block_once(name: str) -> None:
    """Every byte of a block belongs to exactly one field of one token, or is padding."""
    layout, page = LAYOUTS[name], 6
    cache = new_cache(name, 2, page)
    views = fields(cache, layout)
    for view in (views.codes, views.scales, views.plain):
        view += 1
    assert int(cache.max()) == 1
    assert int((cache == 0).sum()) == 2 * page * layout.scale_pad


def test_slots_of() -> None:
    """Unknown positions and foreign blocks give -1, never a real slot (C15)."""
    table = torch.tensor([[3, 0, 9], [-1, 2, 1]], dtype=torch.int32)
    positions = torch.tensor([[0, 1, 2, 5, -1, 6], [0, 2, 3, 4, 99, -7]])
    found = slots_of(table, positions, page=2, blocks=4)
    assert found.tolist() == [[6, 7, 0, -1, -1, -1], [-1, 4, 5, 2, -1, -1]]
    assert found.dtype is torch.int32
    assert slots_of(table[:, :0], positions, page=2, blocks=4).eq(-1).all()
    with pytest.raises(InvalidArgument, match="positions"):
        slots_of(table, positions[:1], page=2, blocks=4)
    with pytest.raises(InvalidArgument, match="page"):
        slots_of(table, positions, page=0, blocks=4)
