"""Entry point of the CUDA backend. Importing it imports neither cuda.bindings nor torch.cuda's runtime.

Drivers: "" is the hardware, "sim" the PTX simulator, which is only ever used when named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from deepinfer.errors import BackendUnavailable
from deepinfer.hal import Backend, Device, Probe
from deepinfer.registry import Kernel
from deepinfer_cuda import detect


class CudaBackend(Backend):
    """NVIDIA devices of compute capability 9.0 and 10.x."""

    name = "cuda"
    aliases = ("nvidia",)
    priority = 100
    drivers = ("", "sim")

    def probe(self, driver: str = "") -> Probe:
        if driver == "sim":
            found: Probe = import_module("deepinfer_cuda.simdevice").probe()
            return found
        return detect.probe(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        if driver == "sim":
            simulated: Device = import_module("deepinfer_cuda.simdevice").open_simulated(index, arch)
            return simulated
        try:
            module = import_module("deepinfer_cuda.device")
            raw = import_module("deepinfer_cuda.driver").CudaDriver()
        except ImportError as error:
            fix = "pip install deepinfer-cuda"
            raise BackendUnavailable("the CUDA host layer cannot be imported", [str(error)], fix) from error
        device: Device = module.CudaDevice(raw, index, arch)
        return device

    def kernels(self) -> Sequence[Kernel]:
        kernels: Sequence[Kernel] = import_module("deepinfer_cuda.kernels").KERNELS
        return kernels

    def conformance(self) -> Path | None:
        path = Path(__file__).with_name("conformance.toml")
        return path if path.exists() else None


def create() -> Backend:
    """Entry point."""
    return CudaBackend()
