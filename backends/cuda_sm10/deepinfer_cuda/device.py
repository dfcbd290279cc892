"""A CUDA device: torch's current stream, torch's events' clock, modules as cubins, graphs through torch.

Invariant: work is always enqueued on torch's current stream of this device, so ops interleave with torch code without
any synchronisation of ours.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from deepinfer.errors import DriverError, UnsupportedError
from deepinfer.hal import Arg, Device, Event, Executable, Graph, Image, Stream
from deepinfer.hal.driver_device import DriverDevice, DriverEvent, DriverStream, release_quietly
from deepinfer_cuda.detect import require
from deepinfer_cuda.driver import CudaDriver
from deepinfer_cuda.launch import STREAM_LIMIT, Prepared
from deepinfer_cuda.tensor_map import TileMap, encode_hardware


class TorchStream(Stream):
    """A torch CUDA stream seen through the HAL."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.torch_stream, self.handle = stream, stream.cuda_stream

    def synchronize(self) -> None:
        self.torch_stream.synchronize()

    def wait(self, event: Event) -> None:
        if isinstance(event, TorchEvent):
            self.torch_stream.wait_event(event.torch_event)
        else:
            raise TypeError(f"event: got {type(event).__name__}, must be an event of this device")


class TorchEvent(Event):
    """A timing torch CUDA event."""

    def __init__(self) -> None:
        self.torch_event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self, stream: Stream) -> None:
        if not isinstance(stream, TorchStream):
            raise TypeError(f"stream: got {type(stream).__name__}, must be a stream of a CUDA device")
        self.torch_event.record(stream.torch_stream)

    def synchronize(self) -> None:
        self.torch_event.synchronize()

    def elapsed_ms(self, stop: Event) -> float:
        if not isinstance(stop, TorchEvent):
            raise TypeError(f"stop: got {type(stop).__name__}, must be an event of this device")
        try:
            return float(self.torch_event.elapsed_time(stop.torch_event))
        except (ValueError, RuntimeError) as error:
            raise DriverError("elapsed_ms", "NOT_READY", f"both events must have been recorded: {error}") from error


class CudaExecutable(Executable):
    """A loaded cubin."""

    def __init__(self, driver: CudaDriver, ctx: int, image: Image) -> None:
        self._driver = driver
        self._module = driver.module_load(ctx, image)
        self._functions: dict[str, int] = {}
        weakref.finalize(self, release_quietly, driver, self._module)

    def prepare(
        self, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Arg], *,
        smem_bytes: int = 0, **attributes: Any,
    ) -> Prepared:
        """A launch to repeat; attributes: cluster=(x, y, z), dependent=bool."""
        fn = self._functions.get(name)
        if fn is None:
            fn = self._functions[name] = self._driver.function(self._module, name)
        return Prepared(fn, grid, block, smem_bytes, args, place=self._driver.place(fn), **attributes)

    def launch(
        self, name: str, grid: tuple[int, int, int], block: tuple[int, int, int], args: Sequence[Arg], *,
        stream: Stream, smem_bytes: int = 0, **attributes: Any,
    ) -> None:
        self.prepare(name, grid, block, args, smem_bytes=smem_bytes, **attributes)(stream)


class CudaGraph(Graph):
    """torch.cuda.CUDAGraph; memory of captured work comes from a pool of its own, which lives as long as its graphs.

    Only this thread's calls can break the capture ("thread_local"): other threads go on allocating and synchronising.
    """

    def __init__(self, device: torch.device, pool: Any) -> None:
        """`pool` is a handle of torch.cuda.graph_pool_handle()."""
        self._device = device
        self._graph, self.pool = torch.cuda.CUDAGraph(), pool
        self._context: Any = None
        self._before: torch.cuda.Stream | None = None

    def __enter__(self) -> Graph:
        self._before = torch.cuda.current_stream(self._device)
        stream = _capture_stream(self._device)
        self._context = torch.cuda.graph(self._graph, self.pool, stream, capture_error_mode="thread_local")
        self._context.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """End the capture. One that broke off leaves this thread on its old stream with the allocator as before, and
        what is raised is the error that broke it."""
        try:
            self._context.__exit__(*exc)
        except RuntimeError:
            _leave_capture(self._device, self.pool)
            if exc[1] is None:
                raise
        finally:
            if self._before is not None:
                make_current(self._before)

    def replay(self) -> None:
        self._graph.replay()


@lru_cache(maxsize=64)
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One per device (torch's own is of the device that captured first): graphs share memory freed on one stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _leave_capture(device: torch.device, pool: Any) -> None:
    """torch before 2.12 leaves its allocator in a capture whose end failed, see pytorch/pytorch#180395."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12):
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)


def make_current(stream: torch.cuda.Stream) -> None:
    """`stream` becomes the current one of its device; torch would make that device current with it."""
    before = torch.cuda.current_device()
    torch.cuda.set_stream(stream)
    torch.cuda.set_device(before)


class CudaDevice(DriverDevice):
    """Device `index` on hardware."""

    def __init__(self, driver: CudaDriver, index: int, arch: str | None) -> None:
        props = driver.device_props(index)
        require(props.arch, arch, f"CUDA device {index} ({props.name})")
        super().__init__("cuda", driver, "", index, torch.device("cuda", index), props)
        self._torch_streams: dict[int, TorchStream] = {}

    def current_stream(self) -> Stream:
        """torch's current stream. Its handle is asked for the way torch's own compiler does: the public call makes an
        object, which costs as much as half a launch."""
        raw = torch._C._cuda_getCurrentRawStream(self.index)
        return self._torch_streams.get(raw) or self._remember_stream(raw)

    def _remember_stream(self, raw: int) -> Stream:
        found = TorchStream(torch.cuda.current_stream(self.torch_device))
        if len(self._torch_streams) >= STREAM_LIMIT:
            self._torch_streams.clear()
        self._torch_streams[raw] = found
        return found

    def set_stream(self, stream: Stream | None) -> None:
        """Make `stream` torch's current stream on this device; None restores the default one."""
        if stream is None:
            make_current(torch.cuda.default_stream(self.torch_device))
        elif isinstance(stream, TorchStream):
            make_current(stream.torch_stream)
        else:
            raise TypeError(f"stream: got {type(stream).__name__}, must be a stream of this device")

    def new_stream(self) -> Stream:
        return TorchStream(torch.cuda.Stream(self.torch_device))  # type: ignore[no-untyped-call]

    def new_event(self) -> Event:
        return TorchEvent()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def load(self, image: Image) -> CudaExecutable:
        driver = self.raw_driver
        if not isinstance(driver, CudaDriver):
            raise TypeError(f"driver: got {type(driver).__name__}, must be CudaDriver")
        return CudaExecutable(driver, self.ctx, image)

    def enable_peer(self, other: Device) -> None:
        """Holds for all memory of `other` that is allocated in the plain way, torch's included (not for its expandable
        segments)."""
        driver = self.raw_driver
        if not isinstance(other, CudaDevice) or not isinstance(driver, CudaDriver):
            raise UnsupportedError(f"{self.spec} cannot reach the memory of {other.spec}", ["it is no CUDA device"])
        if other.index != self.index:
            driver.enable_peer(self.ctx, driver.open(other.index))

    def graph(self, share: Graph | None = None) -> Graph:
        if share is not None and not isinstance(share, CudaGraph):
            raise TypeError(f"share: got {type(share).__name__}, must be a graph of this device")
        return CudaGraph(self.torch_device, torch.cuda.graph_pool_handle() if share is None else share.pool)

    def encode(self, tile: TileMap) -> bytes:
        """The 128-byte tensor map of `tile` for this device."""
        return encode_hardware(tile)


__all__ = ["CudaDevice", "CudaExecutable", "DriverEvent", "DriverStream"]
