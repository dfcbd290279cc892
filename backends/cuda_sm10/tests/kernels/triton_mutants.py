"""Runs broken Triton kernels (sim/mutation.py) on inputs for which every buffer in shared memory is used again.

These kernels share values of warps by plain loads and stores between barriers, so their mutants are dropped barriers
and wrong places in shared memory. An error, a finding, or a result that differs from the original's catches a mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import deepinfer_triton.kernel as triton_kernel
import pytest
import simrun
import torch
from deepinfer_triton import kernels
from deepinfer_triton.code import TritonCode
from deepinfer_triton.compile import TritonBuild, TritonCompiler, unpack
from gemm_mutants import STALL, Run, mutation
from mutation import Mutant

from deepinfer.errors import DeepInferError
from deepinfer.hal import Image
from deepinfer.registry import Call, get_spec
from deepinfer.registry.dispatch import make_call

STREAM: Any = SimpleNamespace(handle=0)


@dataclass
class TritonSubject:
    """One program of an op: its device function, and arguments that make it use its shared memory more than once."""

    op: str
    function: str
    args: Callable[[], Sequence[Any]] = field(repr=False)
    arch: str = "sm_90"

    @property
    def name(self) -> str:
        return f"{self.function} {self.arch}"

    @cached_property
    def kernel(self) -> Any:
        return next(kernel for kernel in kernels() if kernel.op == self.op)

    def call(self, args: Sequence[Any], out: Sequence[torch.Tensor | None] | None = None) -> Call:
        spec = get_spec(self.op)
        return make_call(spec, args, tuple(out or (None,) * len(spec.returns)), torch.device("cpu"))

    @cached_property
    def image(self) -> tuple[dict[str, Any], str]:
        """Header and PTX of the program."""
        call = self.call(self.args())
        builds = [triton_kernel.specialise(call, program) for program in self.kernel.programs(call)]
        build = next(build for build in builds if build.name == self.function)
        header, code = unpack(TritonCompiler(build).compile(build.as_build(self.arch, "ptx"))[0])
        return header, code.decode()

    @cached_property
    def mutants(self) -> list[Mutant]:
        text = self.image[1]
        return [*mutation.mutants(text), *mutation.exchange_mutants(text)]

    @contextmanager
    def _replaced(self, text: str) -> Iterator[None]:
        """Plans of this block load `text` for the program."""
        header, load = self.image[0], triton_kernel.load

        def mutated(device: Any, build: TritonBuild) -> TritonCode:
            if build.name != self.function:
                return load(device, build)
            found = device.load(Image(text.encode(), "ptx", build.name))
            return TritonCode(found, header["entry"], header["threads"], header["shared"])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton_kernel, "load", mutated)
            yield

    def results(self, text: str, runs: Sequence[Run], **options: object) -> Iterator[list[bytes]]:
        """Bytes of all results, run by run; raises what a launch raises."""
        args = self.args()
        out = [
            torch.full(meta.shape, 77).to(meta.dtype) if meta.dtype.itemsize > 1
            else torch.full(meta.shape, 77, dtype=torch.uint8).view(meta.dtype)
            for meta in get_spec(self.op).outputs(self.call(args))
        ]
        with self._replaced(text):
            plan = self.kernel.plan(simrun.device(self.arch), self.call(args, out))
        for schedule, seed in runs:
            simrun.configure(self.arch, schedule, seed, stall_instructions=STALL, drift="on", strict="on", **options)
            self.kernel.run(plan, STREAM, tuple(args), tuple(out), None)
            yield [bytes(tensor.view(torch.uint8).numpy().tobytes()) for tensor in out]

    @cached_property
    def expected(self) -> list[bytes]:
        return next(self.results(self.image[1], [("eager", 0)]))

    def fault(self, text: str, runs: Sequence[Run], **options: object) -> str | None:
        """What gives the kernel `text` away in any of the runs, or None."""
        expected = self.expected
        try:
            for found, (schedule, seed) in zip(self.results(text, runs, **options), runs, strict=True):
                if found != expected:
                    return f"wrong result under {schedule} {seed}"
        except DeepInferError as error:
            return f"{type(error).__name__}: {error}"
        finally:  # the simulator is the process's, and the next test may be anybody's
            simrun.configure(self.arch)
        return None

    def reached(self, mutant: Mutant) -> bool:
        """Whether a run gets to the mutant's statement."""
        return self.fault(mutant.probe, [("eager", 0)], checker="off") is not None


def _rows() -> Sequence[Any]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 5000, generator=generator), torch.randn(5000, generator=generator), 1e-6


def _ids() -> Sequence[Any]:
    """More ids than one block, so that the walk goes round."""
    return torch.randint(-1, 4, (2500,), generator=torch.Generator().manual_seed(2), dtype=torch.int32), 3, 4


def _matrix() -> Sequence[Any]:
    return torch.randn(130, 200, generator=torch.Generator().manual_seed(3)), (128, 128), "f32", 1e-4


def subjects() -> list[TritonSubject]:
    """A reduction over warps, prefix sums in a loop, and a block maximum with an exchange of layouts."""
    return [
        TritonSubject("norm.rms_norm", "rms_norm", _rows),
        TritonSubject("deep_gmm.group_rows", "group_rows", _ids),
        TritonSubject("quant.quantize_fp8", "quantize_fp8", _matrix, "sm_100"),
    ]
