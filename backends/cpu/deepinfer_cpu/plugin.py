"""Entry point of the CPU backend: the portable tier is native here, plus the kernels that are faster on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device
from deepinfer.hal.types import Probe
from deepinfer.registry.kernel import Kernel
from deepinfer_cpu.device import CpuDevice


class CpuBackend(Backend):
    """Always available; one device."""

    name = "cpu"
    priority = 0
    portable_is_native = True
    bit_equal_engine = True

    def probe(self, driver: str = "") -> Probe:
        version = f"torch {torch.__version__}"
        return Probe(available=True, device_count=1, reasons=("always available",), version=version)

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return CpuDevice(index)

    def kernels(self) -> Sequence[Kernel]:
        kernels: Sequence[Kernel] = import_module("deepinfer_cpu.kernels").KERNELS
        return kernels

    def ep_transports(self) -> Sequence[Any]:
        transports: Sequence[Any] = import_module("deepinfer_cpu.ep").TRANSPORTS
        return transports


def create() -> Backend:
    """Entry point."""
    return CpuBackend()
