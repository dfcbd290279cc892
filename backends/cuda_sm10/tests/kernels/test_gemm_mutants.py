"""The mutation score of the shipped GEMM kernels: which share of their broken versions the simulator catches.

A mutant is caught when it does not load, a launch reports a finding, a fault or a deadlock, or a bit of D is wrong.
Mutants that behave as the original are left out of the score, each with its proof; the test fails when one of them is
caught all the same, and when a problem no longer reaches a statement. Figures and misses are printed (pytest -s).
"""

from __future__ import annotations

import pytest
from gemm_mutants import QUICK, TWENTY, Subject, subjects

SUBJECTS = {subject.name: subject for subject in subjects()}
SHARE = 0.95

# Why a mutant is no different from its original. Where the kernel could do without the statement, that is said.
BEFORE, AFTER = "drop tcgen05.fence::before_thread_sync", "drop tcgen05.fence::after_thread_sync"
SAME_WARP = (
    "redundant: the warp that allocates tensor memory issues every product on it, and the others come to it through "
    "the commits of these products"
)
LATER_FENCE = "redundant: another fence::after_thread_sync, of a wait that follows, precedes every tcgen05 operation"
NO_ROWS = "redundant on the path of a warp without rows: it has read nothing since its last release, which was fenced"
LAST_FENCE = "redundant: each warp's last tensor-memory access was followed by the fence of its last release"
ALIGNED = (
    "redundant: the lanes have just met at tcgen05.wait::ld.sync.aligned, which completes the loads of the whole warp"
)
MEET_LATER = "redundant: nothing is shared before the lanes meet at an aligned barrier, or end"
BEFORE_LOAD = "redundant: the lanes meet at the aligned tensor-memory loads before they overwrite their sums"
EMPTY_GROUP = (
    "redundant: a row-wise piece commits an empty group; behind the first such piece all copies out of the staging "
    "buffers have been waited for"
)
ALL_WAITED = "redundant: a row-wise piece commits an empty group, and with three pieces every wait is for all groups"
NEXT_GROUP = (
    "redundant: the second of three pieces joins the group of the third, which is waited for before its buffer is used"
)
LAST_WAITS = (
    "redundant: the cluster barrier at the end holds the CTA until its peer has made its last arrivals; either may go"
)
BOTH_FREE = "redundant: the first piece of a tile has waited until both staging buffers are free; this is the second"
WARP_SYNC, COMMIT_GROUP = "drop bar.warp.sync", "drop cp.async.bulk.commit_group"
SM100 = {f"{AFTER} 0": LATER_FENCE, f"{AFTER} 1": LATER_FENCE, f"{BEFORE} 3": LAST_FENCE, f"{WARP_SYNC} 5": MEET_LATER}
SM100_TMA = {**SM100, f"{BEFORE} 2": NO_ROWS, f"{WARP_SYNC} 0": ALIGNED}
SM90 = {f"{WARP_SYNC} 0": MEET_LATER, "drop every bar.warp.sync 0": MEET_LATER}
EQUIVALENT: dict[str, dict[str, str]] = {
    "sm100_gemm_bf16_128x64x8_c1": {**SM100_TMA, f"{BEFORE} 0": SAME_WARP},
    "sm100_gemm_bf16_128x128x8_c2": {**SM100_TMA, "wait passes at once 0": LAST_WAITS},
    "sm100_gemm_bf16_128x64x7_c1_sums": {
        **SM100, f"{BEFORE} 0": SAME_WARP, f"{BEFORE} 1": NO_ROWS, f"{WARP_SYNC} 1": BEFORE_LOAD,
        f"{WARP_SYNC} 2": ALIGNED,
    },
    "sm90_gemm_bf16_128x128x6_c1": {**SM90, f"{COMMIT_GROUP} 3": EMPTY_GROUP},
    "sm90_gemm_bf16_128x256x4_c2": {
        **SM90, "drop cluster barrier 1": LAST_WAITS, "drop barrier.cluster 3": LAST_WAITS,
        **{f"wait passes at once {site}": LAST_WAITS for site in range(3, 7)},
        **{f"{COMMIT_GROUP} {site}": EMPTY_GROUP for site in (3, 5, 7)},
    },
    "sm90_gemm_bf16_128x128x4_c1_sums": SM90,
    "sm90_gemm_bf16_64x192x6_c1": {
        **SM90, **{f"{COMMIT_GROUP} {site}": ALL_WAITED for site in (1, 3, 5)}, f"{COMMIT_GROUP} 2": NEXT_GROUP,
    },
    "sm90_gemm_bf16_64x160x6_c1_sums": SM90,
    "sm90_masked_bf16_256x128": {
        **{f"drop cp.async.bulk.wait_group {site}": BOTH_FREE for site in (1, 5, 7, 10, 14)},
        **{f"drop bar.sync {site}": BOTH_FREE for site in (4, 12, 16, 22, 30)},
    },
}


def score(subject: Subject, stride: int = 1) -> float:
    """Share of caught mutants among those that are not proved equal to the original; prints it with the misses.

    A sample (`stride` > 1) does not run the proved ones, which take all seeds.
    """
    assert subject.fault(subject.text, QUICK if stride > 1 else TWENTY) is None, "the kernel itself must be clean"
    proved = EQUIVALENT[subject.name]
    unknown = set(proved) - {mutant.name for mutant in subject.mutants}
    assert not unknown, f"{subject.name}: no such mutants: {sorted(unknown)}"
    missed, wrong, caught = [], [], 0
    for mutant in subject.mutants[::stride]:
        if mutant.name in proved and stride > 1:
            continue
        fault = subject.fault(mutant.text, TWENTY)
        if mutant.name in proved:
            wrong += [f"{mutant} is listed as equal to the original, but: {fault}"] if fault else []
        elif fault:
            caught += 1
        else:
            missed.append(str(mutant))
            assert subject.reached(mutant), f"no problem reaches {mutant}"
    total = caught + len(missed)
    print(f"\n{subject.name}: {caught} of {total} caught over {len(TWENTY)} seeds; {len(proved)} equal to the original")
    print("".join(f"  missed: {one}\n" for one in missed), end="")
    assert not wrong, "\n".join(wrong)
    return caught / total


@pytest.mark.parametrize("name", SUBJECTS)
def test_mutation_score_of_a_sample(name: str) -> None:
    """Every eleventh mutant."""
    assert score(SUBJECTS[name], stride=11) >= SHARE


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutation_score_over_twenty_seeds(name: str) -> None:
    assert score(SUBJECTS[name]) >= SHARE
