"""The Python half of the example C backend: about a page of code to bring a foreign runtime into DeepInfer.

    import deepinfer
    from plugin import create            # with examples/backend_c on sys.path and the libraries built by CMake
    deepinfer.register_backend("example_c", create)
    deepinfer.set_backend("example_c:1")

A package would name `create` in its entry-point group "deepinfer.backends" instead of registering it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deepinfer.hal import Arg, Backend, Device, DeviceProps, Image, Probe, Stream, Support
from deepinfer.hal.cabi import CDriver
from deepinfer.hal.driver_device import DriverDevice, tensor_arg
from deepinfer.registry import Call, Kernel, Plan

BUILD = Path(__file__).resolve().parents[2] / "build" / "examples" / "backend_c"


class RmsNormF32(Kernel):
    """`norm.rms_norm` for float32 rows, in C."""

    op = "norm.rms_norm"
    name = "example_c_rms_norm_f32"
    priority = 10

    def __init__(self, build: Path) -> None:
        self.image = Image(str(build / "libexample_c_kernels.so").encode(), "path", "example_c_kernels")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        x, weight = call["x"], call["weight"]
        reasons = []
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            reasons.append(f"takes float32 x and weight only, got {x.dtype} and {weight.dtype}")
        if x.ndim != 2 or not weight.contiguous or (x.shape[1] > 1 and x.stride[1] != 1):
            reasons.append(f"takes [rows, d] with unit stride in d, got shape {x.shape} strides {x.stride}")
        if call.out and not call.out[0].contiguous:
            reasons.append("writes a contiguous result only")
        return Support(tuple(reasons))

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=device.load(self.image))

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> None:
        x, weight, eps = args
        (y,) = out
        if y is None or y.numel() == 0:
            return
        rows, d = x.shape
        params = [tensor_arg(x, False), tensor_arg(weight, False), tensor_arg(y)]
        params += [Arg(struct.pack("<q", x.stride(0))), Arg(struct.pack("<q", d)), Arg(struct.pack("<f", eps))]
        plan.state.launch("rms_norm_f32", (rows, 1, 1), (1, 1, 1), params, stream=stream)


class ExampleBackend(Backend):
    """Two host devices behind a C driver, one kernel; everything else falls back to the portable tier, loudly."""

    name = "example_c"
    priority = -1

    def __init__(self, build: Path = BUILD) -> None:
        self.build = build
        self.driver = CDriver(build / "libexample_c_driver.so")

    def probe(self, driver: str = "") -> Probe:
        return self.driver.probe()

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return DriverDevice(self.name, self.driver, driver, index)

    def kernels(self) -> Sequence[Kernel]:
        return (RmsNormF32(self.build),)


def create() -> Backend:
    """Entry point."""
    return ExampleBackend()
