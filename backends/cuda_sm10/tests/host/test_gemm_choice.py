"""Which GEMM calls the SM90 kernel takes, with reasons, and which tile it picks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from deepinfer_cuda import jit
from deepinfer_cuda.kernels.gemm import KERNELS, Sm90Gemm, pack, pack_lists, range_reasons, stored_by_tma, tma_reasons
from deepinfer_cuda.kernels.gemm_tiles import (
    FEW_TILES,
    SM100_TILES,
    TILES,
    Tile,
    choose,
    choose_dense,
    choose_masked,
)
from deepinfer_cuda.tensor_map import TileMap

from deepinfer.errors import InvalidArgument
from deepinfer.hal import DeviceProps, DriverKind
from deepinfer.registry import Call, TensorMeta

HOPPER = DeviceProps("H200", "sm_90", DriverKind.HARDWARE, compute_units=132)
BLACKWELL = DeviceProps("B200", "sm_100", DriverKind.HARDWARE, compute_units=148)
CPU = torch.device("cpu")


def call(a: torch.Tensor, b: torch.Tensor, **changes: Any) -> Call:
    args = {
        "a": TensorMeta.of(a), "a_scale": None, "a_recipe": "plain", "b": TensorMeta.of(b), "b_scale": None,
        "b_recipe": "plain", "b_packed": None, "b_layout": "", "c": None, "bias": None, "out_dtype": torch.bfloat16,
    }
    return Call("deep_gmm.gemm", {**args, **changes}, CPU)


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def test_plain_call_is_taken() -> None:
    assert Sm90Gemm().supports(HOPPER, call(bf16(65, 72), bf16(40, 72)))


@pytest.mark.parametrize(
    ("props", "made", "reason"),
    [
        (BLACKWELL, lambda: call(bf16(8, 8), bf16(8, 8)), "the device is sm_100"),
        (HOPPER, lambda: call(torch.zeros(8, 8), bf16(8, 8)), "takes bf16"),
        (HOPPER, lambda: call(bf16(8, 8), bf16(8, 8), out_dtype=torch.float16), "writes bf16 or float32"),
        (HOPPER, lambda: call(bf16(1, 1).expand(1 << 31, 1), bf16(8, 1)), "below 2^31"),
    ],
)
def test_refusals_have_reasons(props: DeviceProps, made: Any, reason: str) -> None:
    assert any(reason in text for text in Sm90Gemm().supports(props, made()).reasons)


@pytest.mark.parametrize(("made", "packed", "nbytes", "reason"), [
    (lambda: call(bf16(8, 16), bf16(8, 16)), [], 0, ""),
    (lambda: call(bf16(8, 9), bf16(5, 9)), ["a", "b"], 256 + 5 * 32, "multiples of 16 bytes, got 18"),
    (lambda: call(bf16(8, 8).t(), bf16(8, 8)), ["a"], 8 * 16, "unit stride"),
    (lambda: call(bf16(8, 8), bf16(80)[1:65].view(8, 8)), ["b"], 8 * 16, "16-byte aligned"),
    (lambda: call(bf16(8, 8), bf16(1, 8).expand(8, 8)), ["b"], 8 * 16, "got 0"),
    (lambda: call(bf16(8, 9)[:0], bf16(8, 9)), [], 0, ""),
])
def test_operands_that_tma_cannot_walk_are_packed(made: Any, packed: list[str], nbytes: int, reason: str) -> None:
    asked = made()
    assert Sm90Gemm().supports(HOPPER, asked)
    places, workspace = pack(asked)
    assert [name for name, place in zip("ab", places, strict=True) if place] == packed
    assert workspace == nbytes
    for name in packed:
        assert any(reason in text for text in tma_reasons(name, asked[name]))


@pytest.mark.parametrize(("counts", "starts", "found"), [
    (torch.zeros(3).int(), None, (None, 10)), (torch.zeros(3).int(), torch.zeros(3).int(), (None, 10)),
    (torch.zeros(6).int()[::2], None, (256, 256 + 24)), (torch.zeros(3).int(), torch.zeros(3).long(), (256, 256 + 48)),
])
def test_lists_become_dense_and_of_one_type(counts: torch.Tensor, starts: torch.Tensor | None, found: Any) -> None:
    metas = {"counts": TensorMeta.of(counts), "starts": None if starts is None else TensorMeta.of(starts)}
    assert pack_lists(Call("deep_gmm.grouped_gemm", metas, CPU), 10) == found


def test_tile_choice_follows_the_shape() -> None:
    assert choose(8192, 8192, 8192, 132) == TILES[0]
    assert choose(64, 7168, 16384, 132).rows == 64
    assert choose(128, 4096, 7168, 132) == Tile(64, 64, 12, 1)
    for shape in [(1, 8, 8), (100000, 8, 64), (129, 264, 200)]:
        assert replace(choose(*shape, 132), parts=1) in TILES


@pytest.mark.parametrize(("shape", "found"), [
    ((1, 4096, 7168), Tile(64, 64, 12, 1, sums=True, parts=2, ahead=True)),
    ((32, 24576, 1536), Tile(64, 192, 6, 1, ahead=True)),
    ((256, 4096, 7168), Tile(64, 128, 8, 2, ahead=True)),
    ((64, 7168, 16384), Tile(64, 64, 12, 1)),  # too long to gain from an early start
])
def test_dense_products_of_few_rows(shape: tuple[int, int, int], found: Tile) -> None:
    assert choose_dense(*shape, 132) == found


def test_more_rows_take_what_they_took() -> None:
    for shape in ((257, 4096, 7168), (4096, 24576, 1536), (8192, 8192, 8192)):
        assert choose_dense(*shape, 132) == choose(*shape, 132)
        assert choose_dense(*shape, 132) not in FEW_TILES


def test_copies_bring_no_more_rows_than_there_are() -> None:
    tile = Tile(64, 64, 12, 1)
    assert [tile.box(rows) for rows in (0, 1, 8, 9, 57, 64, 1000)] == [8, 8, 8, 16, 64, 64, 64]
    assert SM100_TILES[0].box(1) == SM100_TILES[0].load_rows


def test_masked_groups_are_not_taken_for_full() -> None:
    """Half of a cluster of two idles where groups hold less than one tile: 690 us, not 559, on an H200 at 128 rows."""
    assert choose(1024, 4096, 7168, 132, 32).cluster == 2
    assert choose_masked(1024, 4096, 7168, 132, 32).cluster == 1
    for units, tiles in ((132, TILES), (148, SM100_TILES)):
        assert choose_masked(1, 4096, 7168, units, 32, tiles) == choose(1, 4096, 7168, units, 32, tiles)
        assert choose_masked(64, 8, 64, units, 2, tiles, by_tma=False).sums
        assert choose_masked(5, 0, 64, units, 2, tiles) in tiles


@pytest.mark.parametrize("shape", [(64, 4096, 7168), (64, 2112, 7168), (1, 512, 7168)])
def test_few_tiles_and_a_long_k_are_split(shape: tuple[int, int, int]) -> None:
    for units, tiles in ((132, TILES), (148, SM100_TILES)):
        tile = choose(*shape, units, tiles=tiles)
        assert tile.parts > 1
        assert tile == choose(*shape, units, tiles=tiles)
    assert choose(64, 128, 64, 132).parts == 1  # one K block: nothing to split


def test_the_epilogue_follows_the_result() -> None:
    plain = call(bf16(8, 64), bf16(8, 64))
    assert stored_by_tma(plain)
    others = [
        call(bf16(8, 64), bf16(9, 64)), call(bf16(8, 64), bf16(8, 64), out_dtype=torch.float32),
        call(bf16(8, 64), bf16(8, 64), bias=TensorMeta.of(bf16(8))),
        call(bf16(8, 64), bf16(8, 64), c=TensorMeta.of(bf16(8, 8))),
        replace(plain, out=(TensorMeta.of(bf16(8, 8).t()),)),
    ]
    for other in others:
        assert Sm90Gemm().supports(HOPPER, other)
        assert not stored_by_tma(other)
        assert choose(8, 8, 64, 132, by_tma=False).sums


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"address": 8}, "16-byte aligned"),
        ({"strides": (24,)}, "multiples of 16"),
        ({"box": (512, 1)}, "must lie in"),
        ({"box": (128, 64)}, "must not exceed the swizzle"),
        ({"box": (4, 64)}, "multiple of 16 bytes"),
        ({"swizzle": 48}, "must be one of"),
        ({"sizes": (0, 4)}, "must lie in"),
        ({"sizes": (1,) * 6, "box": (1,) * 6, "strides": (16,) * 5}, "1 to 5 dimensions"),
    ],
)
def test_tile_maps_keep_the_hardware_rules(changes: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"address": 1024, "dtype": "BFLOAT16", "itemsize": 2, "sizes": (64, 64), "strides": (128,),
                            "box": (64, 64), "swizzle": 128}
    TileMap(**good)
    with pytest.raises(InvalidArgument, match=text):
        TileMap(**{**good, **changes})


def test_evidence_is_keyed_by_what_the_build_reads() -> None:
    for kernel in KERNELS:
        listed = {name.removeprefix("include/") for name in kernel.sources}
        assert listed == {name for unit in kernel.units() for name in unit.build(kernel.archs[0]).headers}
        assert kernel.header in listed
        assert all((jit.PACKAGE / name).is_file() for name in kernel.sources)


def test_dimensions_past_the_coordinates_of_tma_are_refused() -> None:
    wide = torch.empty(1, 1, dtype=torch.bfloat16).expand(1 << 31, 1)
    meta = TensorMeta.of(wide)
    assert any("below 2^31" in reason for reason in range_reasons("a", meta))
