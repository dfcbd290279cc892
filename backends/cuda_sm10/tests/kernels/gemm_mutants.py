"""Runs broken GEMM kernels (sim/mutation.py) on problems that reach every one of their statements.

K exceeds all stages and each CTA works on several tiles, so every buffer, barrier and accumulator is reused; ragged and
empty groups reach the row-wise epilogue. The simulator keeps to the letter (`strict`) and lets lanes drift apart.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import simrun
import torch
from deepinfer_cuda.kernels.gemm_tiles import DENSE_TILES, SM100_TILES, Tile
from simrun import Problem

from deepinfer.errors import DeepInferError

sys.path.insert(0, str(Path(__file__).parents[2] / "deepinfer_cuda" / "sim"))
import mutation
from mutation import Mutant

Run = tuple[str, int]  # schedule, seed
QUICK: list[Run] = [("eager", 0), ("random", 1), ("lazy", 0), ("random", 2)]
TWENTY: list[Run] = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(1, 19))]
STALL = 300_000  # instructions without progress that count as a livelock; the kernels need a few thousand


@dataclass
class Subject:
    """A compiled kernel and the problems its mutants run on, the most telling one first."""

    arch: str
    tile: Tile
    cases: Sequence[tuple[int, Problem]] = field(repr=False)  # with the parts that K is split into

    @property
    def name(self) -> str:
        return self.tile.symbol

    @cached_property
    def text(self) -> str:
        return mutation.entry(simrun.ptx(self.arch, self.tile), self.tile.symbol)

    @cached_property
    def mutants(self) -> list[Mutant]:
        return list(mutation.mutants(self.text))

    def fault(self, text: str, runs: Sequence[Run], **options: object) -> str | None:
        """What gives the kernel `text` away in any of the runs, or None."""
        try:
            module = simrun.load(self.arch, text)
            for schedule, seed in runs:
                for parts, problem in self.cases:
                    settings = {"stall_instructions": STALL, "drift": "on", "strict": "on", **options}
                    simrun.configure(self.arch, schedule, seed, **settings)
                    tile = replace(self.tile, parts=parts)
                    simrun.run(self.arch, tile, problem, units=tile.ctas, module=module)
        except (DeepInferError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        finally:  # the simulator is the process's, and the next test may be anybody's
            simrun.configure(self.arch)
        return None

    def reached(self, mutant: Mutant) -> bool:
        """Whether a run gets to the mutant's statement."""
        return self.fault(mutant.probe, QUICK[:1], checker="off") is not None


def _problems(tile: Tile, parts: int = 1) -> list[tuple[int, Problem]]:
    cols, depth = tile.cols + 8, 64 * tile.stages * parts + 72
    # one tile whose K blocks end at each stage in turn: what a CTA waits for before it leaves depends on that
    ends = [(parts, Problem(100, 136, 64 * blocks)) for blocks in (1, 2, 3)] if tile.cluster > 1 else []
    return [
        (parts, Problem(300, cols, depth)),
        (parts, Problem(300, cols, 136, counts=[70, 0, 129])),
        (parts, Problem(290, 136, 72, counts=[1, 257, 30], starts=[3, 5, 262])),
        (parts, Problem(130, cols, 0)),
        (parts, Problem(17, cols, 136)),  # copies of A that bring fewer rows
        *ends,
    ]


def _sum_problems(tile: Tile) -> list[tuple[int, Problem]]:
    """Split in two and whole: each leans on barriers that the other has no use for."""
    f32, bf16 = torch.float32, torch.bfloat16
    found = _problems(tile, 2)
    added = replace(found[0][1], rows=190, out=f32, c=bf16, bias=torch.float16)
    return [(2, added), *found[1:], (1, Problem(190, tile.cols + 8, 136, out=f32)), (1, found[2][1])]


def _masked_problems() -> list[tuple[int, Problem]]:
    """Every height of a tile full, each layout of the stages filled more than once, with one CTA."""
    counts = [40, 256, 160, 192, 224, 64, 97, 0, 64, 128, -1, 300]
    return [
        (1, Problem(257, 72, 200, counts=counts, masked=True)),
        (1, Problem(130, 136, 72, counts=[3, 130, 70], masked=True, wide=True)),
        (1, Problem(70, 8, 0, counts=[70], masked=True)),
        (1, Problem(130, 8, 72, counts=[40, *[0] * 383, 130, 40], masked=True)),  # groups past the sorted ones
    ]


NAMES = {
    "sm_90": ("128x256x4_c2", "128x128x6_c1", "128x128x4_c1_sums", "64x192x6_c1", "64x160x6_c1_sums"),
    "sm_100": ("128x128x8_c2", "128x64x8_c1", "128x64x7_c1_sums"),
}


def subjects() -> list[Subject]:
    """One kernel of each kind: alone and in clusters, with results by TMA and through float32 sums split along K."""
    masked = Subject("sm_90", simrun.MASKED_TILE, _masked_problems())
    return [masked] + [
        Subject(arch, tile, _sum_problems(tile) if tile.sums else _problems(tile))
        for arch, names in NAMES.items()
        for tile in (DENSE_TILES if arch == "sm_90" else SM100_TILES)
        if tile.symbol.endswith(names)
    ]
