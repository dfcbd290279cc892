"""The driver interface in Python, one to one with `include/deepinfer/driver.h` (a test compares them).

Contract: see the header. Differences are those of the language only: a failing status becomes `DriverError`, output
arguments become results, `di_dim3` becomes a tuple and `di_arg` becomes `hal.types.Arg`. Graph capture, cluster
launch, tensor maps, peer memory and profiling are `extension()`s, so this interface never widens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from deepinfer.hal.types import Arg, CopyKind, DeviceProps, DriverKind, Image, Probe

Dim3 = tuple[int, int, int]


@runtime_checkable
class Driver(Protocol):
    """Handles are opaque non-zero integers; stream 0 is the default stream of a context. Thread-safe."""

    name: str
    kind: DriverKind

    def probe(self) -> Probe:
        """Say whether devices can be opened. Never raises, creates no context, takes < 50 ms."""
        ...

    def device_props(self, index: int) -> DeviceProps:
        """Properties of device `index`, without opening it."""
        ...

    def open(self, index: int) -> int:
        """Open device `index`; returns a context handle."""
        ...

    def release(self, handle: int) -> None:
        """End the life of a context, stream, event or module."""
        ...

    def mem_info(self, ctx: int) -> tuple[int, int]:
        """(free, total) bytes of device memory."""
        ...

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int:
        """Address of `nbytes` bytes of device memory, a multiple of `align`."""
        ...

    def mem_free(self, ctx: int, address: int) -> None:
        """Give back what `mem_alloc` returned."""
        ...

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        """Enqueue a copy of `nbytes` bytes."""
        ...

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None:
        """Enqueue filling `nbytes` bytes with the byte `value`."""
        ...

    def stream_create(self, ctx: int) -> int:
        """A new stream."""
        ...

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        """Block until the work of this stream, and of this stream only, is done."""
        ...

    def event_create(self, ctx: int) -> int:
        """A new event."""
        ...

    def event_record(self, ctx: int, event: int, stream: int) -> None:
        """Place the event behind the work enqueued on `stream` so far."""
        ...

    def event_wait(self, ctx: int, event: int, stream: int) -> None:
        """Make later work of `stream` wait for the event."""
        ...

    def event_synchronize(self, ctx: int, event: int) -> None:
        """Block until the event has been reached."""
        ...

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float:
        """Milliseconds between two events that have been reached."""
        ...

    def module_load(self, ctx: int, image: Image) -> int:
        """Load a compiled module."""
        ...

    def function(self, module: int, name: str) -> int:
        """The kernel `name`; it dies with its module."""
        ...

    def launch(
        self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int
    ) -> None:
        """Enqueue a launch; `smem_bytes` of dynamic fast local memory per block."""
        ...

    def extension(self, name: str) -> Any | None:
        """The extension called `name` (its type is fixed by the name), or None when there is none."""
        ...
