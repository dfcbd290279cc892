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

    def device_props(self, index: int) -> DeviceProps: ...

    def open(self, index: int) -> int:
        """Open device `index`; returns a context handle."""
        ...

    def release(self, handle: int) -> None:
        """End the life of a context, stream, event or module."""
        ...

    def mem_info(self, ctx: int) -> tuple[int, int]:
        """(free, total) bytes of device memory."""
        ...

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int: ...

    def mem_free(self, ctx: int, address: int) -> None: ...

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None: ...

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None: ...

    def stream_create(self, ctx: int) -> int: ...

    def stream_synchronize(self, ctx: int, stream: int) -> None: ...

    def event_create(self, ctx: int) -> int: ...

    def event_record(self, ctx: int, event: int, stream: int) -> None: ...

    def event_wait(self, ctx: int, event: int, stream: int) -> None: ...

    def event_synchronize(self, ctx: int, event: int) -> None: ...

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float: ...

    def module_load(self, ctx: int, image: Image) -> int: ...

    def function(self, module: int, name: str) -> int: ...

    def launch(
        self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int
    ) -> None: ...

    def extension(self, name: str) -> Any | None:
        """The extension called `name` (its type is fixed by the name), or None when there is none."""
        ...
