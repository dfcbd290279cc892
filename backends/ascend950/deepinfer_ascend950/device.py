"""An opened Ascend 950 device, simulated or real: kernel files are compiled on first use and stay loaded.

Invariant: the compiler follows the driver - g++ images never reach hardware, bisheng images never reach the simulator.
"""

from __future__ import annotations

import threading
from importlib import import_module

import torch

from deepinfer.errors import BackendUnavailable
from deepinfer.hal import Device, Image
from deepinfer.hal.device import Executable
from deepinfer.hal.driver import Driver
from deepinfer.hal.driver_device import DriverDevice
from deepinfer.jit import BuildCache, Compiler
from deepinfer_ascend950.toolchain.bisheng import BishengCompiler
from deepinfer_ascend950.toolchain.gxx import GxxCompiler
from deepinfer_ascend950.toolchain.sources import npu_build, sim_build

_cache_lock = threading.Lock()
_cache: list[BuildCache] = []


def build_cache() -> BuildCache:
    """The process's cache of compiled kernels."""
    with _cache_lock:
        if not _cache:
            _cache.append(BuildCache())
        return _cache[0]


class AscendDevice(DriverDevice):
    """Device `index` behind `driver`."""

    def __init__(self, driver: Driver, driver_name: str, index: int, torch_device: torch.device) -> None:
        super().__init__("ascend950", driver, driver_name, index, torch_device)
        self._compiler: Compiler = GxxCompiler() if driver_name == "sim" else BishengCompiler()
        self._executables: dict[tuple[str, tuple[str, ...]], Executable] = {}
        self._lock = threading.Lock()

    def executable(self, source: str, flags: tuple[str, ...] = ()) -> Executable:
        """Kernel file `source`, compiled if need be and loaded once."""
        with self._lock:
            found = self._executables.get((source, flags))
            if found is None:
                build = sim_build(source, flags) if self.driver == "sim" else npu_build(source, flags)
                image = build_cache().get(build, self._compiler).image
                found = self._executables[source, flags] = self.load(Image(image, "elf", source))
            return found

    def enable_peer(self, other: Device) -> None:
        """Simulated devices reach each other's memory as it is; hardware refuses, its driver maps nothing yet."""
        if not (self.simulated and other.backend == self.backend and other.simulated):
            super().enable_peer(other)


def open_simulated(index: int) -> AscendDevice:
    """Device `index` of the simulator."""
    driver = import_module("deepinfer_ascend950.drivers.sim").driver()
    return AscendDevice(driver, "sim", index, torch.device("cpu"))


def open_hardware(index: int) -> AscendDevice:
    """Device `index` of the machine, through ACL and torch_npu."""
    from deepinfer_ascend950 import detect

    reason = detect.import_torch_npu()
    if reason:
        raise BackendUnavailable("no Ascend 950 device can be opened", [reason], detect.INSTALL)
    driver = import_module("deepinfer_ascend950.drivers.acl").driver()
    return AscendDevice(driver, "", index, torch.device("npu", index))
