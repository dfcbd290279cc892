"""The mutation score of `cuda_route`: which share of its broken versions the simulator catches.

Its warps share a ring of stages through mbarriers and a counter, so its mutants are waits, arrivals, byte counts and
barriers. Two CTAs of ragged tiles go round the ring; figures and misses are printed (pytest -s).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace

import pytest
import simrun
import torch
from deepinfer_cuda import jit
from deepinfer_cuda.kernels.route import Shape, prepare
from gemm_mutants import STALL, TWENTY, Run, mutation
from mutation import Mutant

from deepinfer.errors import DeepInferError

SHAPE = Shape(16, 2, 4, 1)  # few warps and stages of the shipped template, so that the ring turns over
TOKENS, SHARE = 75, 0.95
EQUIVALENT = {
    "drop bar.warp.sync 0": "redundant: the lane that asks for a tile is the one that initialised its barrier",
    "wait passes at once 0": "redundant for results: it only lets first tiles arrive before second ones",
    "drop bar.warp.sync 2": "redundant: elect.sync, which follows, waits for all lanes of the warp",
}


class RouteSubject:
    """The kernel on one gate of 128 experts in 4 groups; results of the original are what mutants must give."""

    def __init__(self, arch: str) -> None:
        generator = torch.Generator().manual_seed(5)
        self.arch = arch
        bias = torch.randn(128, generator=generator)
        logits = torch.randn(TOKENS, 128, generator=generator)
        self.args = (logits, 8, "sigmoid", bias, 8, 4, "top2_sum", True, 1.0, 1e-20)

    @cached_property
    def text(self) -> str:
        image = jit.default_cache().get(SHAPE.unit.build(self.arch, "ptx"), jit.NvrtcCompiler()).image.decode()
        return mutation.entry(image, SHAPE.unit.symbol)

    @cached_property
    def mutants(self) -> list[Mutant]:
        return list(mutation.mutants(self.text))

    def results(self, text: str, run: Run, **options: object) -> list[torch.Tensor]:
        device = simrun.device(self.arch)
        two = SimpleNamespace(props=SimpleNamespace(compute_units=2))
        out = (torch.full((TOKENS, 8), 77.0), torch.full((TOKENS, 8), 77, dtype=torch.int32))
        launch = prepare(simrun.load(self.arch, text), two, SHAPE, self.args, out)
        simrun.configure(self.arch, *run, stall_instructions=STALL, drift="on", strict="on", **options)
        launch(device.current_stream())
        return list(out)

    @cached_property
    def expected(self) -> list[torch.Tensor]:
        return self.results(self.text, ("eager", 0))

    def fault(self, text: str, runs: Sequence[Run], **options: object) -> str | None:
        """What gives the kernel `text` away in any of the runs, or None."""
        expected = self.expected
        try:
            for run in runs:
                found = self.results(text, run, **options)
                if not all(map(torch.equal, found, expected)):
                    return f"wrong result under {run}"
        except DeepInferError as error:
            return f"{type(error).__name__}: {error}"
        finally:  # the simulator is the process's, and the next test may be anybody's
            simrun.configure(self.arch)
        return None


def score(subject: RouteSubject) -> float:
    """Share of caught mutants among those that are not proved equal to the original; prints it with the misses."""
    assert subject.fault(subject.text, TWENTY) is None, "the kernel itself must be clean"
    assert set(EQUIVALENT) <= {mutant.name for mutant in subject.mutants}, "no such mutants"
    missed, caught = [], 0
    for mutant in subject.mutants:
        fault = subject.fault(mutant.text, TWENTY)
        if mutant.name in EQUIVALENT:
            assert fault is None, f"{mutant} is listed as equal to the original, but: {fault}"
        elif fault:
            caught += 1
        else:
            missed.append(str(mutant))
            assert subject.fault(mutant.probe, [("eager", 0)], checker="off"), f"no problem reaches {mutant}"
    total = caught + len(missed)
    print(f"\nroute {subject.arch}: {caught} of {total} caught over {len(TWENTY)} seeds; {len(EQUIVALENT)} equal")
    print("".join(f"  missed: {one}\n" for one in missed), end="")
    return caught / total


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_100", marks=pytest.mark.long)])
def test_mutation_score_over_twenty_seeds(arch: str) -> None:
    assert score(RouteSubject(arch)) >= SHARE
