"""A device whose host layer is the one for hardware (driver, launches, tensor maps) over the fake libcuda.

torch has no CUDA here, so tensors are torch CPU tensors: their bytes are pinned with cuMemHostRegister around a launch,
which makes them addressable by kernels, on hardware as here. Everything else is the shipped code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cuda.bindings import driver as cu
from deepinfer_cuda.device import CudaExecutable
from deepinfer_cuda.driver import CudaDriver
from deepinfer_cuda.result import check
from deepinfer_cuda.tensor_map import TileMap, encode_hardware

from deepinfer.hal import Arg, DriverKind, Image, Stream
from deepinfer.hal.driver_device import DriverDevice


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Non-empty (start, end) ranges in order, with those that touch made one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if start == end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


class PinningExecutable(CudaExecutable):
    """Pins the announced bytes while a launch runs, and waits for it."""

    def prepare(
        self, name: str, grid: Any, block: Any, args: Sequence[Arg], **options: Any
    ) -> Callable[[Stream], None]:
        prepared = super().prepare(name, grid, block, args, **options)
        spans = [(arg.span.base, arg.span.base + arg.span.nbytes) for arg in args if arg.span is not None]

        def run(stream: Stream) -> None:
            pinned = []
            try:
                for start, end in merged(spans):
                    check("cuMemHostRegister", cu.cuMemHostRegister(start, end - start, 0))
                    pinned.append(start)
                prepared(stream)
                stream.synchronize()
            finally:
                for start in pinned:
                    check("cuMemHostUnregister", cu.cuMemHostUnregister(start))

        return run


class HostLayerDevice(DriverDevice):
    """Device `index` of the fake driver. It counts as simulated, so that kernels hand over PTX instead of cubins."""

    def __init__(self, index: int = 0) -> None:
        self.cuda = CudaDriver()
        props = dataclasses.replace(self.cuda.device_props(index), kind=DriverKind.SIMULATOR)
        super().__init__("cuda", self.cuda, "", index, torch.device("cpu"), props)

    def load(self, image: Image) -> PinningExecutable:
        return PinningExecutable(self.cuda, self.ctx, image)

    def encode(self, tile: TileMap) -> bytes:
        return encode_hardware(tile)
