"""A device as the layers above see it: memory, streams, events, executables, and which torch device its tensors use.

Invariants: no vendor names; a device belongs to one backend and is opened once per (backend, driver, index); ops find
their resolved kernels in `dispatch_cache` and launches to repeat in `bound_calls`, which live and die with the device.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from deepinfer.errors import UnsupportedError
from deepinfer.hal.types import Arg, Cap, DeviceProps, DriverKind, Image


class Stream(abc.ABC):
    """An ordered queue of work. `handle` is what the driver calls it (0 for the default stream)."""

    handle: int = 0

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Block until everything enqueued so far has finished."""

    @abc.abstractmethod
    def wait(self, event: Event) -> None:
        """Make later work on this stream wait for `event`."""


class Event(abc.ABC):
    """A point in a stream. Times are device time where the device has a timer, else wall time."""

    @abc.abstractmethod
    def record(self, stream: Stream) -> None:
        """Place the event behind everything enqueued on `stream` so far."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Block until the recorded point has been reached."""

    @abc.abstractmethod
    def elapsed_ms(self, stop: Event) -> float:
        """Milliseconds from this event to `stop`; both must have been recorded and reached."""


class Executable(abc.ABC):
    """A loaded module. Thread-safe; `launch` enqueues and returns."""

    @abc.abstractmethod
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
        """Launch kernel `name`. `attributes` (cluster=(x, y, z), ...) need the matching capability."""

    def prepare(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Arg],
        *,
        smem_bytes: int = 0,
        **attributes: Any,
    ) -> Callable[[Stream], None]:
        """A launch to repeat on any stream; runtimes with a costly launch path override this to do the work once."""

        def enqueue(stream: Stream) -> None:
            self.launch(name, grid, block, args, stream=stream, smem_bytes=smem_bytes, **attributes)

        return enqueue


class Graph(abc.ABC):
    """Captured work that can be replayed; used as a context manager while capturing."""

    @abc.abstractmethod
    def __enter__(self) -> Graph: ...

    @abc.abstractmethod
    def __exit__(self, *exc: object) -> None: ...

    @abc.abstractmethod
    def replay(self) -> None:
        """Enqueue the captured work on the stream it was captured on."""


class Device(abc.ABC):
    """One opened device. Kernels and tests get it from `deepinfer.current_device()`."""

    def __init__(self, backend: str, driver: str, index: int, props: DeviceProps, torch_device: torch.device) -> None:
        self.backend, self.driver, self.index = backend, driver, index
        self.props, self.torch_device = props, torch_device
        self.dispatch_cache: dict[str, dict[Any, Any]] = {}
        self.bound_calls: dict[str, dict[Any, Any]] = {}
        self.statistics: dict[str, int] = {}
        self.closed = False

    def __repr__(self) -> str:
        return f"<Device {self.spec} {self.props.name!r} arch={self.props.arch} on {self.torch_device}>"

    def __copy__(self) -> Device:
        return self  # a device is a resource: objects that are copied with it keep using the one that is open

    def __deepcopy__(self, memo: object) -> Device:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Device], tuple[str]]:
        return _reopened, (self.spec,)  # in another process its name opens the device of that process

    @property
    def spec(self) -> str:
        """The text that selects this device again: `backend[/driver]:index`."""
        driver = f"/{self.driver}" if self.driver else ""
        return f"{self.backend}{driver}:{self.index}"

    @property
    def simulated(self) -> bool:
        """Whether a simulator executes its kernels."""
        return self.props.kind is DriverKind.SIMULATOR

    def supports(self, cap: Cap) -> bool:
        """Whether the device offers `cap`."""
        return cap in self.props.caps

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised tensor in this device's memory."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.torch_device)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy (or the tensor itself when it is there already) in this device's memory."""
        return tensor.to(self.torch_device)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host; waits for the work that produces it."""
        self.synchronize()
        return tensor.cpu()

    @abc.abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes."""

    @abc.abstractmethod
    def current_stream(self) -> Stream:
        """The stream this thread's ops are enqueued on."""

    def set_stream(self, stream: Stream | None) -> None:
        """Make `stream` this thread's current stream, None the default one. A device without ASYNC_STREAMS finishes
        work inside the call, so it has nothing to switch; every other device must override this."""
        if self.supports(Cap.ASYNC_STREAMS):
            raise UnsupportedError(f"{self.spec} claims ASYNC_STREAMS but does not implement set_stream")

    @abc.abstractmethod
    def new_stream(self) -> Stream:
        """A stream of its own, unordered with all others; released when garbage collected."""

    @abc.abstractmethod
    def new_event(self) -> Event:
        """An event that has not been recorded."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for all work of this device."""

    def load(self, image: Image) -> Executable:
        """Load a compiled module; `UnsupportedError` when the device runs no compiled code."""
        reason = f"{image.name}: format {image.fmt!r} has no loader here"
        raise UnsupportedError(f"{self.spec} loads no modules", [reason])

    def enable_peer(self, other: Device) -> None:
        """Let this device's kernels and copies reach the memory of `other`, in this direction; repeating does nothing.

        Raises:
            UnsupportedError: the two cannot reach each other; says why.
        """
        reason = "the device lacks the capability PEER_MEMORY"
        raise UnsupportedError(f"{self.spec} cannot reach the memory of {other.spec}", [reason])

    def graph(self, share: Graph | None = None) -> Graph:
        """A new graph to capture into; `UnsupportedError` unless `supports(Cap.GRAPHS)`.

        Memory allocated while capturing belongs to the graph. With `share` it comes from the memory of that graph of
        this device, where what its capture has freed is used again: for graphs that never run at the same time.
        """
        raise UnsupportedError(f"{self.spec} cannot capture graphs", ["the device lacks the capability GRAPHS"])

    def close(self) -> None:
        """Give back driver resources. Idempotent; ops refuse the device afterwards, its name opens a new one."""
        self.closed = True
        self.dispatch_cache.clear()
        self.bound_calls.clear()


def _reopened(spec: str) -> Device:
    from deepinfer.hal.current import device  # that module is built on this one

    return device(spec)
