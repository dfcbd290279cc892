"""The CPU as a device: torch CPU tensors, one in-order stream, wall-clock events."""

from __future__ import annotations

import os
import platform

import torch

from deepinfer.hal.device import Device, Event, Stream
from deepinfer.hal.host import HostEvent, HostStream
from deepinfer.hal.types import Cap, DeviceProps, DriverKind

CAPS = frozenset({Cap.BF16, Cap.FP16, Cap.FP8_E4M3, Cap.MXFP8, Cap.MXFP4, Cap.PEER_MEMORY})


def memory_bytes() -> tuple[int, int]:
    """(free, total) bytes of physical memory; zeros where the system does not tell."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except (ValueError, OSError, AttributeError):
        return 0, 0


class CpuDevice(Device):
    """Device 0 of backend "cpu"."""

    def __init__(self, index: int) -> None:
        props = DeviceProps(
            name=platform.processor() or platform.machine() or "cpu",
            arch=platform.machine() or "cpu",
            kind=DriverKind.HOST,
            compute_units=torch.get_num_threads(),
            memory_bytes=memory_bytes()[1],
            caps=CAPS,
        )
        super().__init__("cpu", "", index, props, torch.device("cpu"))
        self._stream = HostStream()

    def memory_info(self) -> tuple[int, int]:
        return memory_bytes()

    def current_stream(self) -> Stream:
        return self._stream

    def new_stream(self) -> Stream:
        return HostStream()

    def new_event(self) -> Event:
        return HostEvent()

    def synchronize(self) -> None:
        return None
