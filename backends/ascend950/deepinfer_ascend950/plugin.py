"""Entry point of the Ascend 950 backend. Importing it opens no driver and imports nothing of the vendor.

Drivers: "" is the hardware (ACL runtime), "sim" the simulator, which is only ever used when named.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from deepinfer.errors import BackendUnavailable, invalid
from deepinfer.hal import Backend, Device, Probe
from deepinfer.registry import Kernel
from deepinfer_ascend950 import detect

ARCH = "ascend950"


class AscendBackend(Backend):
    """Huawei Ascend 950 devices, and their simulator."""

    name = "ascend950"
    aliases = ("ascend", "npu")
    priority = 90
    drivers = ("", "sim")

    def probe(self, driver: str = "") -> Probe:
        if driver == "sim":
            probe: Probe = import_module("deepinfer_ascend950.drivers.sim").probe()
            return probe
        return detect.probe()

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        if arch not in (None, ARCH):
            raise invalid("arch", arch, "this backend has one architecture", nearest=ARCH)
        module = import_module("deepinfer_ascend950.device")
        if driver != "sim":
            found = detect.probe()
            if not found.available:
                raise BackendUnavailable("no Ascend 950 device can be opened", list(found.reasons), found.fix)
        device: Device = module.open_simulated(index) if driver == "sim" else module.open_hardware(index)
        return device

    def kernels(self) -> Sequence[Kernel]:
        kernels: Sequence[Kernel] = import_module("deepinfer_ascend950.ops").KERNELS
        return kernels

    def ep_transports(self) -> Sequence[Any]:
        transports: Sequence[Any] = import_module("deepinfer_ascend950.ep").transports()
        return transports

    def conformance(self) -> Path | None:
        path = Path(__file__).with_name("conformance.toml")
        return path if path.exists() else None


def create() -> Backend:
    """Entry point."""
    return AscendBackend()
