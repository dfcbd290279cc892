"""The null backend: every duty of a backend in its smallest form, the template to copy for a new one.

It opens one device on host memory and declares no kernel, so every op runs on the portable tier as a loud fallback.
It is never chosen automatically (negative priority).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device, Event, Stream
from deepinfer.hal.host import HostEvent, HostStream
from deepinfer.hal.types import Cap, DeviceProps, DriverKind, Probe
from deepinfer.registry.kernel import Kernel


class NullDevice(Device):
    """Host memory, one stream, no kernels."""

    def __init__(self, index: int) -> None:
        props = DeviceProps("null device", "null", DriverKind.HOST, caps=frozenset({Cap.BF16, Cap.FP8_E4M3}))
        super().__init__("null", "", index, props, torch.device("cpu"))
        self._stream = HostStream()

    def memory_info(self) -> tuple[int, int]:
        return 0, 0

    def current_stream(self) -> Stream:
        return self._stream

    def new_stream(self) -> Stream:
        return HostStream()

    def new_event(self) -> Event:
        return HostEvent()

    def synchronize(self) -> None:
        return None


class NullBackend(Backend):
    """See the module's docstring."""

    name = "null"
    priority = -1

    def probe(self, driver: str = "") -> Probe:
        return Probe(available=True, device_count=1, reasons=("runs no kernels; a template",), version="1")

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return NullDevice(index)

    def kernels(self) -> Sequence[Kernel]:
        return ()


def create() -> Backend:
    """Entry point."""
    return NullBackend()
