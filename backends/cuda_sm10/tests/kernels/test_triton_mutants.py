"""The mutation score of shipped Triton kernels: which share of their broken versions the simulator catches.

No mutant of these kernels is known to equal its original, so none is left out. Figures and misses are printed
(pytest -s).
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the compiler is an optional dependency")

from gemm_mutants import QUICK, TWENTY
from triton_mutants import TritonSubject, subjects

SUBJECTS = {subject.name: subject for subject in subjects()}
SHARE = 0.95


def score(subject: TritonSubject, stride: int = 1) -> float:
    """Share of caught mutants; prints it with the misses."""
    runs = QUICK if stride > 1 else TWENTY
    assert subject.fault(subject.image[1], runs) is None, "the kernel itself must be clean"
    chosen = subject.mutants[::stride]
    assert all(subject.reached(mutant) for mutant in chosen), "a statement is not reached"
    missed = [str(mutant) for mutant in chosen if subject.fault(mutant.text, runs) is None]
    print(f"\n{subject.name}: {len(chosen) - len(missed)} of {len(chosen)} caught over {len(runs)} seeds")
    print("".join(f"  missed: {one}\n" for one in missed), end="")
    return 1 - len(missed) / len(chosen)


@pytest.mark.parametrize("name", SUBJECTS)
def test_mutation_score_of_a_sample(name: str) -> None:
    """Every third mutant."""
    assert score(SUBJECTS[name], 3) >= SHARE


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
def test_mutation_score_over_twenty_seeds(name: str) -> None:
    assert score(SUBJECTS[name]) >= SHARE
