"""Streams and events of devices that run everything at once on the calling thread (cpu, null, templates)."""

from __future__ import annotations

import time

from deepinfer.errors import InvalidArgument
from deepinfer.hal.device import Event, Stream


class HostStream(Stream):
    """Work is finished when the call returns, so there is nothing to wait for."""

    def synchronize(self) -> None:
        return None

    def wait(self, event: Event) -> None:
        return None


class HostEvent(Event):
    """A reading of the monotonic wall clock."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def record(self, stream: Stream) -> None:
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        return None

    def elapsed_ms(self, stop: Event) -> float:
        if not isinstance(stop, HostEvent) or self._seconds is None or stop._seconds is None:
            raise InvalidArgument("stop: both events must be of this device and recorded before this call")
        return (stop._seconds - self._seconds) * 1e3
