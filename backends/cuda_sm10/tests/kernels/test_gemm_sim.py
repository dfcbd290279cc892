"""The bf16 GEMM kernels of SM90 and SM100 in the PTX simulator: equal bits for integer inputs, no checker finding.

Shapes make every buffer turn over: K beyond all stages, several tiles per CTA and more tiles than CTAs, ragged edges.
"""

from __future__ import annotations

import itertools

import pytest
import simrun
from deepinfer_cuda.kernels.gemm import Tile
from simrun import TILES_OF, Problem

CASES = [(arch, tile) for arch, tiles in TILES_OF.items() for tile in tiles]
SMALL = [(arch, tile) for arch, tile in CASES if tile.cols == 128 or tile == TILES_OF["sm_90"][0]]
SCHEDULES = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(1, 6))]

DENSE = [
    Problem(1, 8, 8),
    Problem(129, 72, 0),
    Problem(128, 256, 64),
    Problem(257, 136, 200),
    Problem(70, 12, 136, pitch=16),
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
FAMILIES = {"dense": DENSE, "grouped": GROUPED, "masked": MASKED}


def deep(tile: Tile) -> Problem:
    """K beyond all stages, and with two CTAs at least three tiles for each."""
    return Problem(300, 2 * tile.cols + 8, 64 * tile.stages + 72)


def name(value: object) -> str | None:
    return value.symbol if isinstance(value, Tile) else None


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


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("arch", "tile"), CASES, ids=name)
def test_every_shape_under_every_schedule(arch: str, tile: Tile, schedule: str, seed: int) -> None:
    problems = itertools.chain([deep(tile)], *FAMILIES.values())
    for number, problem in enumerate(problems):
        simrun.configure(arch, schedule, seed)
        simrun.run(arch, tile, problem, units=2 + number % 4, seed=seed * 100 + number)
