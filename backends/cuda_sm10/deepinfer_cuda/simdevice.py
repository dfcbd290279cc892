"""Simulated devices: the same kernels, launches and tensor maps as on hardware, executed by the PTX simulator.

Device index k < 8 has the SM90 profile, k >= 8 the SM100 profile; a name with an architecture (`cuda_sm10/sim`) counts
from the first device of its profile. Tensors are torch CPU tensors, and every launch has finished when it returns,
because torch's CPU code knows nothing of streams.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from deepinfer.errors import BackendUnavailable, DriverError, UnsupportedError
from deepinfer.hal import Arg, Device, Image, Probe, Stream
from deepinfer.hal.cabi import CDriver, pack_args
from deepinfer.hal.cabi_types import CArg, CDim3
from deepinfer.hal.driver import Dim3
from deepinfer.hal.driver_device import DriverDevice, DriverExecutable
from deepinfer.hal.types import Status
from deepinfer_cuda.tensor_map import TileMap, map_codes

LIBRARY = "libdeepinfer_cuda_sim.so"
PACKAGE = Path(__file__).resolve().parent
PROFILE_FIRST = {"sm_90": 0, "sm_100": 8}
FIX = "cmake -S backends/cuda_sm10/deepinfer_cuda/sim -B build/ptxsim && cmake --build build/ptxsim"
NO_PEER = "it is no simulated device of this process"
_u32, _u64 = ct.c_uint32, ct.c_uint64


class _Config(ct.Structure):
    """di_cuda_config"""

    _fields_ = (
        ("struct_size", _u32), ("grid", CDim3), ("block", CDim3), ("cluster", CDim3), ("smem_bytes", _u32),
        ("programmatic", _u32), ("cooperative", _u32),
    )


class _Launch(ct.Structure):
    """di_cuda_launch"""

    _fields_ = (
        ("struct_size", _u32),
        ("launch", ct.CFUNCTYPE(ct.c_int, _u64, ct.POINTER(_Config), ct.POINTER(CArg), _u32, _u64)),
        ("max_active_clusters", ct.c_void_p),
    )


class _TensorMap(ct.Structure):
    """di_cuda_tensor_map"""

    _fields_ = (
        ("struct_size", _u32),
        ("encode_tiled", ct.CFUNCTYPE(
            ct.c_int, ct.c_void_p, _u32, _u32, _u64, ct.POINTER(_u64), ct.POINTER(_u64), ct.POINTER(_u32),
            ct.POINTER(_u32), _u32, _u32, _u32, _u32,
        )),
        ("replace_address", ct.c_void_p),
    )


def library(package: Path = PACKAGE) -> Path | None:
    """The simulator: beside the installed package, else the newest one that a CMake build of the source tree left."""
    installed = package / "sim" / LIBRARY
    if installed.exists():
        return installed
    build = package.parents[2] / "build"
    found = list(build.glob(f"*/{LIBRARY}")) + list(build.glob(f"*/*/*/{LIBRARY}")) if build.is_dir() else []
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def probe() -> Probe:
    """Whether the simulator is built; loads nothing."""
    if library() is None:
        return Probe(False, reasons=(f"{LIBRARY} is not built",), fix=FIX)
    return Probe(True, 16, ("8 of profile sm_90, then 8 of sm_100",))


class SimDriver(CDriver):
    """Driver "cuda/sim": the C table of the simulator with its launch and tensor-map extensions."""

    def __init__(self) -> None:
        path = library()
        if path is None:
            raise BackendUnavailable("no simulated CUDA device", [f"{LIBRARY} is not built"], FIX)
        super().__init__(path)
        self._launcher: Any = self._extension_table("cuda.launch", _Launch)
        self._maps: Any = self._extension_table("cuda.tensor_map", _TensorMap)

    def _extension_table(self, name: str, kind: type[ct.Structure]) -> ct.Structure:
        address = self.extension(name)
        if not address:
            raise DriverError(f"{self.name}: extension", "NOT_FOUND", f"{self.library} lacks {name!r}")
        return ct.cast(address, ct.POINTER(kind)).contents

    def _require(self, what: str, status: int) -> None:
        if status != Status.OK:
            raise DriverError(f"{self.name}: {what}", Status(status).name, self._table.last_error().decode())

    def launch_clusters(
        self, fn: int, grid: Dim3, block: Dim3, cluster: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int
    ) -> None:
        """A launch with attributes; `grid` counts CTAs."""
        raw, _keep = pack_args(args)
        config = _Config(ct.sizeof(_Config), CDim3(*grid), CDim3(*block), CDim3(*cluster), smem_bytes, 0, 0)
        self._require("launch", self._launcher.launch(fn, ct.byref(config), raw, len(args), stream))

    def encode(self, tile: TileMap) -> bytes:
        """The simulator's 128 bytes for `tile`."""
        rank, (dtype, swizzle) = len(tile.sizes), map_codes(tile)
        raw = (ct.c_uint8 * 192)()
        address = (ct.addressof(raw) + 63) // 64 * 64
        self._require("encode_tiled", self._maps.encode_tiled(
            address, dtype, rank, tile.address, (_u64 * rank)(*tile.sizes), (_u64 * max(rank - 1, 1))(*tile.strides),
            (_u32 * rank)(*tile.box), (_u32 * rank)(*[1] * rank), 0, swizzle, 0, 0,
        ))
        return ct.string_at(address, 128)


class SimExecutable(DriverExecutable):
    """A loaded PTX module; launches take clusters and finish before they return."""

    def __init__(self, driver: SimDriver, ctx: int, image: Image) -> None:
        super().__init__(driver, ctx, image)
        self._sim, self._ctx = driver, ctx

    def prepare(
        self, name: str, grid: Dim3, block: Dim3, args: Sequence[Arg], *, smem_bytes: int = 0,
        cluster: Dim3 = (1, 1, 1), dependent: bool = False, **attributes: Any,
    ) -> Callable[[Stream], None]:
        """A launch to repeat. `dependent` is accepted and means nothing here: launches run one after another."""
        if attributes:
            raise UnsupportedError(f"{self._sim.name}: launch attributes", sorted(attributes))
        fn = self._functions.get(name)
        if fn is None:
            fn = self._functions[name] = self._sim.function(self._module, name)

        def enqueue(stream: Stream) -> None:
            self._sim.launch_clusters(fn, grid, block, cluster, smem_bytes, args, stream.handle)
            self._sim.stream_synchronize(self._ctx, stream.handle)

        return enqueue

    def launch(
        self, name: str, grid: Dim3, block: Dim3, args: Sequence[Arg], *, stream: Stream, smem_bytes: int = 0,
        **attributes: Any,
    ) -> None:
        self.prepare(name, grid, block, args, smem_bytes=smem_bytes, **attributes)(stream)


class SimDevice(DriverDevice):
    """Device `index` of the simulator."""

    def __init__(self, driver: SimDriver, index: int) -> None:
        super().__init__("cuda", driver, "sim", index, torch.device("cpu"))
        self._sim = driver

    def load(self, image: Image) -> SimExecutable:
        return SimExecutable(self._sim, self.ctx, image)

    def encode(self, tile: TileMap) -> bytes:
        """The 128-byte tensor map of `tile` for this device."""
        return self._sim.encode(tile)

    def enable_peer(self, other: Device) -> None:
        """Simulated devices of one process share its memory: there is nothing to switch on."""
        if not isinstance(other, SimDevice):
            raise UnsupportedError(f"{self.spec} cannot reach the memory of {other.spec}", [NO_PEER])


def open_simulated(index: int, arch: str | None) -> Device:
    """Device `index` of the profile for `arch`; without one, of the simulator's own numbering."""
    if arch is not None and arch not in PROFILE_FIRST:
        reason = f"profiles are {', '.join(PROFILE_FIRST)}"
        raise BackendUnavailable(f"the simulator has no {arch} device", [f"no simulated {arch} device: {reason}"])
    first = 0 if arch is None else PROFILE_FIRST[arch]
    if arch is not None and index >= 8:
        raise BackendUnavailable(f"the simulator has no {arch} device {index}", ["each profile has devices 0 to 7"])
    return SimDevice(SimDriver(), first + index)
