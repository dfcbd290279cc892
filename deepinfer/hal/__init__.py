"""Hardware abstraction layer: drivers, devices, backends and the choice among them. No vendor code lives here."""

from deepinfer.hal.backend import API_VERSION, Backend
from deepinfer.hal.current import current_device, device, devices, set_backend, use_backend
from deepinfer.hal.device import Device, Event, Executable, Graph, Stream
from deepinfer.hal.discovery import register_backend, unregister_backend
from deepinfer.hal.driver import Driver
from deepinfer.hal.types import YES, Arg, Cap, CopyKind, DeviceProps, DriverKind, Image, Probe, Span, Status, Support

__all__ = [
    "API_VERSION", "YES", "Arg", "Backend", "Cap", "CopyKind", "Device", "DeviceProps", "Driver", "DriverKind", "Event",
    "Executable", "Graph", "Image", "Probe", "Span", "Status", "Stream", "Support", "current_device", "device",
    "devices", "register_backend", "set_backend", "unregister_backend", "use_backend",
]
