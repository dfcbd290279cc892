"""How many wrong GEMM kernels the simulator tells from right ones; the share is printed, every miss must be explained.

A mutant is caught when it does not load, a launch reports a finding or a deadlock, or a bit of D is wrong, under any of
four schedules. K exceeds all stages and each CTA works on several tiles: every buffer and accumulator is reused.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import simrun
from mutants import Mutant, entry, mutants
from simrun import TILES_OF, Problem

from deepinfer.errors import DeepInferError

KERNELS = {
    tile.symbol: (arch, replace(tile, parts=2) if tile.sums else tile)
    for arch, tiles in TILES_OF.items()
    for tile in tiles
}
SM100, SM100_PAIR = "sm100_gemm_bf16_128x64x8_c1", "sm100_gemm_bf16_128x128x8_c2"
SM90, SM90_PAIR = "sm90_gemm_bf16_64x128x8_c1", "sm90_gemm_bf16_128x256x4_c2"
SM100_SUMS, SM90_SUMS = "sm100_gemm_bf16_128x64x7_c1_sums", "sm90_gemm_bf16_64x128x8_c1_sums"
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]

# Why a mutant may survive, by its name or its operator. Most reasons are limits of the simulator, not of the kernels.
LAST_WAITS = "the last waits of the copies; in the simulator they follow from the last commit or release of the block"
ROW_COMMITS = "row-wise stores read no staging buffer asynchronously; only the first piece's commit keeps the count"
COMMON = {
    "drop warp sync": "the simulator runs the lanes of a converged warp in lockstep",
}
TENSOR = {
    **COMMON,
    "drop tcgen05 fence 0": "the simulator orders allocation and use by the block barrier alone",
    "drop tcgen05 fence 1": "as fence 0",
    "drop tcgen05 fence 2": "fence 3 follows before the next product",
    "drop tcgen05 fence 3": "operands written by TMA need the barrier only; fence 2 orders the accumulator",
    "drop tcgen05 fence 6": "nothing was read from tensor memory on this path",
    "drop tcgen05 fence 7": "the simulator orders freeing by the block barrier alone",
    "drop tcgen05 fence 8": "as fence 7",
    "drop store wait 1": "in the simulator stores may outlive their block",
}
SURVIVORS: dict[str, dict[str, str]] = {
    SM100: TENSOR,
    SM100_PAIR: {
        **TENSOR,
        "drop wait 0": LAST_WAITS,
    },
    SM90: {
        **COMMON,
        **dict.fromkeys(
            ("drop wait 0", "wrong phase 0", "wait on next barrier 0", "drop arrive 0", "arrive at next barrier 0"),
            "the path of a warpgroup without rows, which a block with one math warpgroup never takes",
        ),
        "drop store wait 2": "in the simulator stores may outlive their block",
        "drop store commit 3": ROW_COMMITS,
    },
    SM90_PAIR: {
        **COMMON,
        **{f"{operator} {site}": LAST_WAITS
           for operator in ("drop wait", "wrong phase", "wait on next barrier") for site in range(3, 7)},
        "drop store wait 4": "in the simulator stores may outlive their block",
        **{f"drop store commit {site}": ROW_COMMITS for site in (3, 5, 7)},
        "drop cluster sync 1": "the last waits of the copies already hold both blocks until their peer is done",
    },
}


def attempt(symbol: str, text: str) -> str | None:
    """What gave the kernel away, or None."""
    arch, tile = KERNELS[symbol]
    deep = Problem(300, tile.cols + 8, 64 * tile.stages * tile.parts + 72)
    tails = Problem(300, tile.cols + 8, 136, counts=[70, 129])
    try:
        module = simrun.load(arch, text)
        for (schedule, seed), problem in itertools.product(SCHEDULES, (deep, tails)):
            simrun.configure(arch, schedule, seed)
            simrun.run(arch, tile, problem, units=tile.ctas, module=module)
    except (DeepInferError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def explanation(symbol: str, mutant: Mutant) -> str | None:
    known = SURVIVORS[symbol]
    return known.get(mutant.name) or known.get(mutant.name.rsplit(" ", 1)[0])


def original(symbol: str) -> str:
    arch, tile = KERNELS[symbol]
    return entry(simrun.ptx(arch, replace(tile, parts=1)), symbol)


QUICK = {
    SM100: ["drop wait 0", "drop wait 1", "drop wait 2", "drop wait 3", "wrong phase 1", "wait on next barrier 2",
            "drop arrive 0", "arrive at next barrier 0", "expect 16 bytes less 0", "drop commit 0", "drop commit 1",
            "commit to next barrier 0", "drop wait for loads 0", "drop proxy fence 0", "drop init fence 0",
            "drop store wait 0", "drop block sync 1", "drop free 0", "drop every tcgen05.fence::before_thread_sync;"],
    SM90: ["drop wait 1", "drop wait 2", "wrong phase 1", "drop arrive 1", "expect 16 bytes more 0", "drop commit 0",
           "drop wgmma wait 0", "drop wgmma fence 0", "drop proxy fence 0", "drop init fence 0", "drop store wait 0"],
    SM90_SUMS: ["drop wait 2", "drop wait 3", "wrong phase 3", "wait on next barrier 2", "drop cluster arrive 0",
                "drop cluster arrive 1", "drop wgmma wait 1", "drop block sync 1", "drop block sync 2",
                "drop cluster sync 0"],
    SM100_SUMS: ["drop wait 4", "drop wait 5", "wrong phase 5", "wait on next barrier 4", "drop cluster arrive 0",
                 "drop cluster arrive 1", "drop wait for loads 0", "drop cluster sync 0"],
}


@pytest.mark.parametrize("symbol", QUICK)
def test_chosen_mutants_are_caught(symbol: str) -> None:
    found = {mutant.name: mutant for mutant in mutants(original(symbol))}
    survivors = [name for name in QUICK[symbol] if attempt(symbol, found[name].text) is None]
    print(f"{symbol}: {len(QUICK[symbol]) - len(survivors)} of {len(QUICK[symbol])} caught, survivors: {survivors}")
    assert not survivors


@pytest.mark.long
@pytest.mark.parametrize("symbol", [SM100, SM100_PAIR, SM90, SM90_PAIR])
def test_every_survivor_is_explained(symbol: str) -> None:
    text = original(symbol)
    assert attempt(symbol, text) is None
    every = list(mutants(text))
    survivors: list[Mutant] = [mutant for mutant in every if attempt(symbol, mutant.text) is None]
    print(f"{symbol}: {len(every) - len(survivors)} of {len(every)} mutants caught")
    for mutant in survivors:
        print(f"  survives: {mutant.name}: `{mutant.where}`: {explanation(symbol, mutant)}")
    unexplained = [mutant.name for mutant in survivors if explanation(symbol, mutant) is None]
    assert not unexplained
