"""A `Device` over any `Driver`: what a backend needs when its runtime is reached through the narrow waist alone.

Tensors of simulated and host devices are torch CPU tensors (their addresses are valid device addresses by driver.h);
an accelerator backend subclasses this and names its own torch device. Streams, events and modules are driver handles
and are released with the device or when garbage collected.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from deepinfer.errors import DriverError, InvalidArgument, UnsupportedError
from deepinfer.hal.device import Device, Event, Executable, Stream
from deepinfer.hal.driver import Driver
from deepinfer.hal.types import Arg, DeviceProps, Image, Span


def tensor_span(tensor: torch.Tensor, writable: bool = True) -> Span:
    """The bytes a view may touch: from its first to its last element (empty views touch nothing)."""
    if tensor.numel() == 0:
        return Span(tensor.data_ptr(), 0, writable)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(tensor.data_ptr(), (last + 1) * tensor.element_size(), writable)


def tensor_arg(tensor: torch.Tensor, writable: bool = True) -> Arg:
    """A kernel parameter that points at `tensor`'s first element."""
    return Arg.pointer(tensor.data_ptr(), tensor_span(tensor, writable))


class DriverStream(Stream):
    """A driver stream; `handle` 0 is the default one."""

    def __init__(self, driver: Driver, ctx: int, handle: int) -> None:
        self._driver, self._ctx, self.handle = driver, ctx, handle
        if handle:
            weakref.finalize(self, release_quietly, driver, handle)

    def synchronize(self) -> None:
        self._driver.stream_synchronize(self._ctx, self.handle)

    def wait(self, event: Event) -> None:
        if not isinstance(event, DriverEvent):
            raise InvalidArgument(f"event: got {type(event).__name__}, must be an event of this device")
        self._driver.event_wait(self._ctx, event.handle, self.handle)


class DriverEvent(Event):
    """A driver event."""

    def __init__(self, driver: Driver, ctx: int) -> None:
        self._driver, self._ctx = driver, ctx
        self.handle = driver.event_create(ctx)
        weakref.finalize(self, release_quietly, driver, self.handle)

    def record(self, stream: Stream) -> None:
        self._driver.event_record(self._ctx, self.handle, stream.handle)

    def synchronize(self) -> None:
        self._driver.event_synchronize(self._ctx, self.handle)

    def elapsed_ms(self, stop: Event) -> float:
        if not isinstance(stop, DriverEvent):
            raise InvalidArgument(f"stop: got {type(stop).__name__}, must be an event of this device")
        return self._driver.event_elapsed_ms(self._ctx, self.handle, stop.handle)


def release_quietly(driver: Driver, handle: int) -> None:
    """Release from a finalizer: the context may be gone already, which frees the handle as well."""
    try:
        driver.release(handle)
    except DriverError:
        return


class DriverExecutable(Executable):
    """A driver module with its functions looked up once."""

    def __init__(self, driver: Driver, ctx: int, image: Image) -> None:
        self._driver, self._name = driver, image.name
        self._module = driver.module_load(ctx, image)
        self._functions: dict[str, int] = {}
        weakref.finalize(self, release_quietly, driver, self._module)

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Arg],
        *,
        stream: Stream,
        smem_bytes: int = 0,
        **attributes: Any,
    ) -> None:
        if attributes:
            raise UnsupportedError(f"{self._driver.name} launches without attributes", sorted(attributes))
        fn = self._functions.get(name)
        if fn is None:
            fn = self._functions[name] = self._driver.function(self._module, name)
        self._driver.launch(fn, grid, block, smem_bytes, args, stream.handle)


class DriverDevice(Device):
    """Device `index` of `driver`. The context opens with the object and closes with `close()`."""

    def __init__(
        self,
        backend: str,
        driver: Driver,
        driver_name: str,
        index: int,
        torch_device: torch.device | None = None,
        props: DeviceProps | None = None,
    ) -> None:
        found = props or driver.device_props(index)
        super().__init__(backend, driver_name, index, found, torch_device or torch.device("cpu"))
        self.raw_driver = driver
        self.ctx = driver.open(index)
        self._default = DriverStream(driver, self.ctx, 0)
        self._streams: weakref.WeakSet[DriverStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._closer = weakref.finalize(self, release_quietly, driver, self.ctx)

    def memory_info(self) -> tuple[int, int]:
        return self.raw_driver.mem_info(self.ctx)

    def current_stream(self) -> Stream:
        found: Stream = getattr(self._local, "stream", self._default)
        return found

    def set_stream(self, stream: Stream | None) -> None:
        """Make `stream` this thread's current stream; None restores the default one."""
        self._local.stream = stream or self._default

    def new_stream(self) -> Stream:
        stream = DriverStream(self.raw_driver, self.ctx, self.raw_driver.stream_create(self.ctx))
        with self._lock:
            self._streams.add(stream)
        return stream

    def new_event(self) -> Event:
        return DriverEvent(self.raw_driver, self.ctx)

    def synchronize(self) -> None:
        """Wait for every stream that is still in use: by driver.h the default one says nothing about the others."""
        with self._lock:
            streams = [self._default, *self._streams]
        for stream in streams:
            stream.synchronize()

    def load(self, image: Image) -> Executable:
        return DriverExecutable(self.raw_driver, self.ctx, image)

    def close(self) -> None:
        super().close()
        self._closer()
