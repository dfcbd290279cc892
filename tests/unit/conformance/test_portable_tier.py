"""The portable tier under the whole suite: a cpu backend without kernels of its own must pass every level-2 check.

Elsewhere portable forms stand behind kernels, and what a kernel takes is never seen by them: strides, guards, poison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from deepinfer_cpu.device import CpuDevice
from deepinfer_cpu.plugin import CpuBackend

from deepinfer import conformance
from deepinfer.hal import register_backend, unregister_backend
from deepinfer.hal.device import Device
from deepinfer.registry import Kernel


class BareDevice(CpuDevice):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.backend = "bare"


class Bare(CpuBackend):
    name = "bare"

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return BareDevice(index)

    def kernels(self) -> Sequence[Kernel]:
        return ()


@pytest.fixture(autouse=True)
def bare() -> Iterator[None]:
    register_backend("bare", Bare)
    yield
    unregister_backend("bare")


@pytest.mark.parametrize("ops", [["norm.rms_norm"], pytest.param(None, marks=pytest.mark.long)], ids=["norm", "all"])
def test_passes(ops: list[str] | None) -> None:
    report = conformance.run("bare", levels=["L2"], ops=ops)
    assert report.ok, report.text()
    kernels = {kernel for facts in report.kernels.values() for kernel in facts}
    assert kernels <= {"portable", "LocalGroup"}  # exchanges have transports instead
