"""Runs a case on one side: through `deepinfer_cuda`'s hardware driver or through its simulator.

Both take the PTX text itself (on hardware the driver's compiler loads it) and both go through the same HAL driver
interface; only launches with clusters and tensor maps use each side's extension.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.hal import Arg, CopyKind, Image, Span
from ptx_bitwise.case import Buffer, Case, Map, Pointer, Struct


class Side(ABC):
    """Common part; `kind` is the evidence's driver_kind."""

    kind = ""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.ctx = driver.open(0)
        self.device = driver.device_props(0).name

    def run(self, case: Case) -> list[np.ndarray[Any, Any]]:
        """Outputs of `case`, in argument order."""
        buffers = [arg for arg in case.args if isinstance(arg, Buffer)]
        addresses = [self._upload(buffer.data) for buffer in buffers]
        try:
            module = self.driver.module_load(self.ctx, Image(case.ptx.encode(), "ptx", case.name))
            try:
                fn = self.driver.function(module, case.entry)
                self.launch(fn, case, self._arguments(case, addresses))
                self.driver.stream_synchronize(self.ctx, 0)
            finally:
                self.driver.release(module)
            return [self._download(a, b.data) for a, b in zip(addresses, buffers, strict=True) if b.out]
        finally:
            for address in addresses:
                self.driver.mem_free(self.ctx, address)

    def _upload(self, data: np.ndarray[Any, Any]) -> int:
        data = np.ascontiguousarray(data)
        address = int(self.driver.mem_alloc(self.ctx, data.nbytes, 1024))
        self.driver.memcpy_async(self.ctx, address, data.ctypes.data, data.nbytes, CopyKind.H2D, 0)
        self.driver.stream_synchronize(self.ctx, 0)
        return address

    def _download(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = np.empty_like(like)
        self.driver.memcpy_async(self.ctx, out.ctypes.data, address, out.nbytes, CopyKind.D2H, 0)
        self.driver.stream_synchronize(self.ctx, 0)
        return out

    def _arguments(self, case: Case, addresses: list[int]) -> list[Arg]:
        found, index = [], 0
        for arg in case.args:
            if isinstance(arg, Buffer):
                span = Span(addresses[index], arg.data.nbytes, arg.out or arg.scratch)
                found.append(Arg(b"", span) if arg.hidden else Arg.pointer(addresses[index], span))
                index += 1
            elif isinstance(arg, Map):
                found.append(Arg(self.encode(arg, addresses[arg.buffer] + arg.offset)))
            elif isinstance(arg, Pointer):
                found.append(Arg((addresses[arg.buffer] + arg.offset).to_bytes(8, "little")))
            elif isinstance(arg, Struct):
                raw = bytearray(arg.data)
                for at, buffer, offset in arg.places:
                    raw[at : at + 8] = (addresses[buffer] + offset).to_bytes(8, "little")
                found.append(Arg(bytes(raw)))
            else:
                found.append(Arg(arg))
        return found

    @abstractmethod
    def launch(self, fn: int, case: Case, args: list[Arg]) -> None:
        """Starts `case` with `args`."""

    @abstractmethod
    def encode(self, tile: Map, address: int) -> bytes:
        """The tensor map of `tile` over memory at `address`."""


class Hardware(Side):
    kind = "hardware"

    def __init__(self) -> None:
        from deepinfer_cuda.driver import CudaDriver

        super().__init__(CudaDriver())

    def launch(self, fn: int, case: Case, args: list[Arg]) -> None:
        from deepinfer_cuda.launch import Prepared

        from deepinfer.hal.driver_device import DriverStream

        stream = DriverStream(self.driver, 0, 0)
        stream.handle = 0
        place = self.driver.place(fn)
        Prepared(fn, case.grid, case.block, case.smem, args, cluster=case.cluster, place=place)(stream)

    def encode(self, tile: Map, address: int) -> bytes:
        from cuda.bindings import driver as cu
        from deepinfer_cuda.result import check

        rank = len(tile.dims)
        dims, strides = [cu.cuuint64_t(v) for v in tile.dims], [cu.cuuint64_t(v) for v in tile.strides or (16,)]
        steps = [cu.cuuint32_t(v) for v in tile.steps or [1] * rank]
        tail = (
            cu.CUtensorMapInterleave(tile.interleave),
            cu.CUtensorMapSwizzle(tile.swizzle),
            cu.CUtensorMapL2promotion(0),
            cu.CUtensorMapFloatOOBfill(int(tile.nan_fill)),
        )
        kind = cu.CUtensorMapDataType(tile.dtype)
        if tile.lower:
            encoded = check(
                "cuTensorMapEncodeIm2col",
                cu.cuTensorMapEncodeIm2col(
                    kind, rank, address, dims, strides, list(tile.lower), list(tile.upper), *tile.box, steps, *tail
                ),
            )
        else:
            box = [cu.cuuint32_t(v) for v in tile.box]
            encoded = check(
                "cuTensorMapEncodeTiled",
                cu.cuTensorMapEncodeTiled(kind, rank, address, dims, strides, box, steps, *tail),
            )
        return b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)


class Simulated(Side):
    kind = "simulated"

    def __init__(self, library: str | None = None) -> None:
        from unittest.mock import patch

        from deepinfer_cuda import simdevice

        found = Path(library) if library else simdevice.library()
        with patch.object(simdevice, "library", lambda: found):
            driver = simdevice.SimDriver()
        super().__init__(driver)

    def launch(self, fn: int, case: Case, args: list[Arg]) -> None:
        self.driver.launch_clusters(fn, case.grid, case.block, case.cluster, case.smem, args, 0)

    def encode(self, tile: Map, address: int) -> bytes:
        rank = len(tile.dims)
        raw = (ctypes.c_uint8 * 192)()
        at = (ctypes.addressof(raw) + 63) // 64 * 64
        words, halves = ctypes.c_uint64 * 5, ctypes.c_uint32 * 5
        if tile.lower:
            self._encode_im2col(tile, at, address)
            return ctypes.string_at(at, 128)
        status = self.driver._maps.encode_tiled(
            at,
            tile.dtype,
            rank,
            address,
            words(*tile.dims),
            words(*tile.strides),
            halves(*tile.box),
            halves(*(tile.steps or [1] * rank)),
            tile.interleave,
            tile.swizzle,
            0,
            int(tile.nan_fill),
        )
        self.driver._require("encode_tiled", status)
        return ctypes.string_at(at, 128)

    def _encode_im2col(self, tile: Map, at: int, address: int) -> None:
        table = self.driver._extension_table("cuda.tensor_map", _Im2colTable)
        rank, words, halves, corners = len(tile.dims), ctypes.c_uint64 * 5, ctypes.c_uint32 * 5, ctypes.c_int32 * 3
        status = table.encode_im2col(
            at, tile.dtype, rank, address, words(*tile.dims), words(*tile.strides),
            corners(*tile.lower), corners(*tile.upper),
            *tile.box, halves(*(tile.steps or [1] * rank)), tile.interleave, tile.swizzle, 0, int(tile.nan_fill),
        )  # fmt: skip
        self.driver._require("encode_im2col", status)


class _Im2colTable(ctypes.Structure):
    """di_cuda_tensor_map up to encode_im2col."""

    _u32, _u64p, _i32p = ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int32)
    _fields_ = (
        ("struct_size", _u32),
        ("encode_tiled", ctypes.c_void_p),
        ("replace_address", ctypes.c_void_p),
        ("encode_im2col", ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, _u32, _u32, ctypes.c_uint64, _u64p, _u64p, _i32p, _i32p, _u32, _u32,
            ctypes.POINTER(_u32), _u32, _u32, _u32, _u32,
        )),
    )  # fmt: skip


def open_side(name: str, library: str | None = None) -> Side:
    """ "hardware" or "simulated"."""
    return Hardware() if name == "hardware" else Simulated(library)
