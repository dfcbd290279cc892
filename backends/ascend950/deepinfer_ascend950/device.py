"""An opened Ascend 950 device, simulated or real: kernel files are compiled on first use and stay loaded.

Invariant: the compiler follows the driver - g++ images never reach hardware, bisheng images never reach the simulator.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

import torch

from deepinfer.errors import BackendUnavailable
from deepinfer.hal import Device, Image, Stream
from deepinfer.hal.device import Executable
from deepinfer.hal.driver import Driver
from deepinfer.hal.driver_device import DriverDevice, DriverStream
from deepinfer.jit import BuildCache, Compiler
from deepinfer_ascend950.toolchain.bisheng import BishengCompiler
from deepinfer_ascend950.toolchain.gxx import GxxCompiler
from deepinfer_ascend950.toolchain.sources import npu_build, sim_build

PEER_EXTENSION = "ascend950.acl.peer.v1"
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
        """Simulated devices reach each other's memory as it is; devices of the machine ask their driver."""
        alike = other.backend == self.backend and other.simulated == self.simulated
        if alike and self.simulated:
            return
        found = self.raw_driver.extension(PEER_EXTENSION) if alike else None
        if found is None:
            super().enable_peer(other)
        else:
            found.enable(self.index, other.index)


class HardwareDevice(AscendDevice):
    """A device of the machine. Never run. Its streams are torch_npu's, so that kernels and torch's work are ordered.

    Invariant: the current stream is whatever `torch.npu.current_stream` says on the calling thread.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        super().__init__(driver, "", index, torch.device("npu", index))
        self._adopted: dict[int, DriverStream] = {}

    def _adopt(self, stream: Any) -> DriverStream:
        """Our view of a torch_npu stream; one per raw stream, which torch_npu owns."""
        raw = int(stream.npu_stream)
        with self._lock:
            found = self._adopted.get(raw)
            if found is None:
                handle = self.raw_driver.adopt_stream(self.ctx, raw)  # type: ignore[attr-defined]
                found = self._adopted[raw] = DriverStream(self.raw_driver, self.ctx, handle)
                found.torch_stream = stream  # type: ignore[attr-defined]  # keeps the raw stream alive
            return found

    def current_stream(self) -> Stream:
        return self._adopt(torch.npu.current_stream(self.torch_device))  # type: ignore[attr-defined]

    def set_stream(self, stream: Stream | None) -> None:
        npu = torch.npu  # type: ignore[attr-defined]
        npu.set_stream(npu.default_stream(self.torch_device) if stream is None else stream.torch_stream)  # type: ignore[attr-defined]

    def new_stream(self) -> Stream:
        return self._adopt(torch.npu.Stream(device=self.torch_device))  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        self.raw_driver.stream_synchronize(self.ctx, 0)  # 0: the whole device


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
    return HardwareDevice(driver, index)
