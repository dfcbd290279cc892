"""The bf16 GEMM kernels of SM90 and SM100 in the PTX simulator: equal bits for integer inputs, no checker finding.

Shapes make every buffer turn over: K beyond all stages, several tiles per CTA and more tiles than CTAs, ragged edges.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import simrun
import torch
from deepinfer_cuda.kernels.gemm import Product
from deepinfer_cuda.kernels.gemm_tiles import Tile
from simrun import MASKED_TILE, TILES_OF, Problem

CASES = [(arch, tile) for arch, tiles in TILES_OF.items() for tile in tiles]
SUMS = [(arch, tile) for arch, tile in CASES if tile.sums]
SMALL = [case for case in CASES if case not in SUMS and (case[1].cols == 128 or case[1] == TILES_OF["sm_90"][0])]
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(1, 6))]

DENSE = [
    Problem(1, 8, 8),
    Problem(129, 72, 0),
    Problem(128, 256, 64),
    Problem(257, 136, 200),
    Problem(70, 12, 136, pitch=16),
    Problem(33, 136, 64 * 13 + 8),  # copies of A that bring no more rows than there are
    Problem(17, 72, 200),
    Problem(40, 16, 72, counts=[40]),
]
GROUPED = [
    Problem(300, 136, 136, counts=[70, 0, 1, 129, 64]),
    Problem(330, 72, 200, counts=[64, 1, 0, 100, 31], starts=[260, 200, 5, 7, 150], wide=True),
    Problem(200, 136, 72, counts=[-3, 40, 1000, 5], starts=[0, -10, 150, 100]),
    Problem(64, 16, 72, counts=[0, 0]),
    Problem(64, 16, 0, counts=[3, 40]),
    Problem(90, 12, 64, counts=[37, 20], pitch=16),
]
MASKED = [
    Problem(200, 136, 136, counts=[0, 1, 200, 33], masked=True),
    Problem(130, 72, 72, counts=[-1, 129, 500], masked=True, wide=True),
    Problem(40, 16, 0, counts=[3, 40], masked=True),
]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ADDED = [  # only for tiles whose sums pass through shared memory
    Problem(130, 137, 136, c=BF16, bias=F16),
    Problem(65, 72, 328, out=F32, c=F32, bias=BF16),
    Problem(3, 9, 64, bias=F32),
    Problem(24, 72, 64 * 13 + 8, out=F32),
    Problem(129, 40, 0, out=F32, c=F32),
    Problem(67, 76, 72, c=BF16, dense_c=True),
    Problem(67, 76, 72, out=F32, c=F32, dense_c=True),
    Problem(300, 130, 136, counts=[70, 0, 1, 129, 64], out=F32),
    Problem(330, 9, 200, counts=[64, 1, 0, 100, 31], starts=[260, 200, 5, 7, 150], wide=True),
    Problem(90, 12, 64, counts=[37, 20], pitch=13),
    Problem(130, 71, 72, counts=[-1, 129, 500], masked=True, wide=True),
    Problem(40, 16, 72, counts=[3, 40], masked=True, out=F32),
]
HEIGHTS = [  # for tiles as high as counts ask for: every height, several tiles, each layout of the stages
    Problem(600, 136, 64 * 8 + 72, counts=[256, 300, 0, 160, 190, 224, 64, 513, 97], masked=True),
    Problem(300, 264, 64 * 5, counts=[255, 257, 129, 300], masked=True),
    Problem(70, 130, 136, counts=[70, 65, 2], masked=True, wide=True, pitch=136),
    Problem(33, 16, 64, counts=[33 * (g % 3 == 1) for g in range(400)], masked=True),  # more groups than are sorted
]
FAMILIES = {"dense": DENSE, "grouped": GROUPED, "masked": MASKED}


def deep(tile: Tile) -> Problem:
    """K beyond all stages, and with two CTAs at least three tiles for each."""
    return Problem(300, 2 * tile.cols + 8, 64 * tile.stages + 72)


def name(value: object) -> str | None:
    if not isinstance(value, Tile):
        return None
    return value.symbol if value.parts == 1 else f"{value.symbol}_k{value.parts}"


@pytest.mark.parametrize(("number", "arch", "tile"), [(i, *case) for i, case in enumerate(CASES)], ids=name)
def test_deep_product_on_every_tile(number: int, arch: str, tile: Tile) -> None:
    schedule, seed = SCHEDULES[number % 3]
    simrun.configure(arch, schedule, seed)
    simrun.run(arch, tile, deep(tile), seed=number)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("arch", "tile"), SMALL, ids=name)
def test_edges(arch: str, tile: Tile, family: str) -> None:
    for number, problem in enumerate(FAMILIES[family]):
        simrun.configure(arch, *SCHEDULES[number % len(SCHEDULES)])
        simrun.run(arch, tile, problem, units=1 + number % 3, seed=number)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_tiles_as_high_as_their_groups(schedule: str, seed: int) -> None:
    for number, problem in enumerate([*MASKED, *HEIGHTS]):
        simrun.configure("sm_90", schedule, seed)
        simrun.run("sm_90", MASKED_TILE, problem, units=1 + number % 3, seed=number)


def test_a_row_has_the_same_bits_in_a_group_of_any_size() -> None:
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((1, 256, 328), (1, 72, 328)))
    found = []
    for count in (1, 40, 100, 150, 190, 210, 256):
        simrun.configure("sm_90")
        d = torch.zeros(1, 256, 72, dtype=torch.bfloat16)
        simrun.launch("sm_90", MASKED_TILE, simrun.Product(a, b, d, (torch.tensor([count]),)), units=1)
        found.append(d[0, :count])
    assert all(torch.equal(d, found[-1][: len(d)]) for d in found), "seed 7"


@pytest.mark.parametrize(("arch", "tile"), SUMS, ids=name)
def test_results_that_tma_cannot_write(arch: str, tile: Tile) -> None:
    for number, problem in enumerate(ADDED):
        assert problem.needs_sums
        simrun.configure(arch, *SCHEDULES[number % len(SCHEDULES)])
        simrun.run(arch, tile, problem, units=1 + number % 3, seed=number)


@pytest.mark.parametrize(("arch", "tile"), SUMS, ids=name)
def test_products_split_along_k(arch: str, tile: Tile) -> None:
    """A cluster walks several tiles; K fills the stages of every part, or leaves some parts without a block."""
    problems = [
        (2, Problem(190, tile.cols + 8, 64 * 2 * tile.stages + 72)), (4, Problem(130, 40, 328, c=BF16, bias=F16)),
        (8, Problem(65, 16, 64, out=F32)), (2, Problem(200, 24, 200, counts=[70, 0, 1, 100])), (8, Problem(70, 9, 520)),
    ]
    for number, (parts, problem) in enumerate(problems):
        simrun.configure(arch, *SCHEDULES[(number + tile.rows // 64) % len(SCHEDULES)])
        simrun.run(arch, replace(tile, parts=parts), problem, units=parts, seed=number)


def test_a_split_product_adds_in_one_order() -> None:
    """The sum of random numbers has the same bits whatever part is first."""
    tile = replace(next(tile for _, tile in SUMS), parts=4)
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((70, 1024), (24, 1024)))
    found = []
    for schedule, seed in SCHEDULES:
        simrun.configure("sm_90", schedule, seed)
        d = torch.empty(70, 24)
        simrun.launch("sm_90", tile, simrun.Product(a, b, d), units=16)
        found.append(d)
    assert all(torch.equal(d, found[0]) for d in found), "seed 3"
    exact = a.double() @ b.double().t()
    assert (found[0].double() - exact).abs().max() < 1e-3


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("arch", "tile"), CASES, ids=name)
def test_every_shape_under_every_schedule(arch: str, tile: Tile, schedule: str, seed: int) -> None:
    problems = itertools.chain([deep(tile)], *FAMILIES.values(), ADDED if tile.sums else ())
    for number, problem in enumerate(problems):
        simrun.configure(arch, schedule, seed)
        chosen = replace(tile, parts=(1, 2, 4, 8)[number % 4]) if tile.sums else tile
        simrun.run(arch, chosen, problem, units=chosen.ctas * (1 + number % 3), seed=seed * 100 + number)


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_tiles_as_high_as_their_groups_under_every_schedule(schedule: str, seed: int) -> None:
    for number, problem in enumerate([*MASKED, *HEIGHTS]):
        simrun.configure("sm_90", schedule, seed, strict="on", drift="on")
        simrun.run("sm_90", MASKED_TILE, problem, units=1 + number % 4, seed=seed * 100 + number)


@pytest.mark.parametrize(("arch", "tile"), SUMS[:1] + [case for case in SUMS if case[0] == "sm_100"][:1])
def test_a_row_or_column_that_is_not_finite_changes_no_bit_of_another(arch: str, tile: Tile) -> None:
    """Values with full mantissas, whose sums are rounded by the rule of the instruction."""
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(rows, 136, generator=generator).bfloat16() for rows in (70, 40))
    spoiled_a, spoiled_b = a.clone(), b.clone()
    spoiled_a[5, 3], spoiled_a[6, :], spoiled_b[7, 100] = torch.nan, torch.inf, -torch.inf
    results = []
    for left, right in ((a, b), (spoiled_a, spoiled_b)):
        simrun.configure(arch)
        d = torch.zeros(70, 40)
        simrun.launch(arch, tile, Product(left, right, d, (), None, None), 2)
        results.append(d)
    rows, columns = torch.arange(70), torch.arange(40)
    kept = ((rows != 5) & (rows != 6))[:, None] & (columns != 7)[None, :]
    assert not torch.equal(results[0], (a.double() @ b.double().t()).float()), "sums that are exact prove nothing"
    assert torch.equal(results[0][kept], results[1][kept]), "seed 5"
    assert not results[1][~kept].isfinite().any()
