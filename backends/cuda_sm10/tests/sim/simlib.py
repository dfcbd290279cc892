# ruff: noqa: E501, RUF012
"""Test access to the PTX simulator: ctypes on driver.h and the extension tables, with numpy arrays as device memory.

Why: the tests of this directory exercise the library itself, below the Python package that will use it. Arrays are passed as
buffers (their byte span is announced to the bounds checker); numbers need an explicit ctypes type.
"""

from __future__ import annotations

import ctypes as C
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "backends/cuda_sm10/deepinfer_cuda/sim"
BUILD = ROOT / "build/ptxsim"
SM90, SM100 = 0, 8

u32, u64, H = C.c_uint32, C.c_uint64, C.c_uint64


class Arg(C.Structure):
    _fields_ = [
        ("kind", u32),
        ("size", u32),
        ("data", C.c_void_p),
        ("base", u64),
        ("span", u64),
        ("writable", u32),
        ("reserved", u32),
    ]


class Dim3(C.Structure):
    _fields_ = [("x", u32), ("y", u32), ("z", u32)]


class Config(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("grid", Dim3),
        ("block", Dim3),
        ("cluster", Dim3),
        ("smem", u32),
        ("programmatic", u32),
        ("cooperative", u32),
    ]


class Statistics(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("launches", u64),
        ("warp_instructions", u64),
        ("thread_instructions", u64),
        ("async_steps", u64),
        ("mma_macs", u64),
        ("seconds", C.c_double),
    ]


P = C.POINTER
F = C.CFUNCTYPE
Status = C.c_int


class Table(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("abi_major", C.c_uint16),
        ("abi_minor", C.c_uint16),
        ("name", C.c_char_p),
        ("kind", u32),
        ("reserved", u32),
        ("last_error", F(C.c_char_p)),
        ("probe", F(Status, C.c_void_p)),
        ("device_props", F(Status, u32, C.c_void_p)),
        ("open", F(Status, u32, P(H))),
        ("release", F(Status, H)),
        ("mem_info", F(Status, H, P(u64), P(u64))),
        ("mem_alloc", F(Status, H, u64, u64, P(u64))),
        ("mem_free", F(Status, H, u64)),
        ("memcpy_async", F(Status, H, u64, u64, u64, u32, H)),
        ("memset_async", F(Status, H, u64, C.c_uint8, u64, H)),
        ("stream_create", F(Status, H, P(H))),
        ("stream_synchronize", F(Status, H, H)),
        ("event_create", F(Status, H, P(H))),
        ("event_record", F(Status, H, H, H)),
        ("event_wait", F(Status, H, H, H)),
        ("event_synchronize", F(Status, H, H)),
        ("event_elapsed_ms", F(Status, H, H, H, P(C.c_double))),
        ("module_load", F(Status, H, C.c_char_p, u64, C.c_char_p, P(H))),
        ("function", F(Status, H, C.c_char_p, P(H))),
        ("launch", F(Status, H, Dim3, Dim3, u32, P(Arg), u32, H)),
        ("extension", F(Status, C.c_char_p, P(C.c_void_p))),
    ]


class LaunchTable(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("launch", F(Status, H, P(Config), P(Arg), u32, H)),
        ("max_active_clusters", F(Status, H, P(Config), P(u32))),
    ]


class MapTable(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("encode_tiled", F(Status, C.c_void_p, u32, u32, u64, P(u64), P(u64), P(u32), P(u32), u32, u32, u32, u32)),
        ("replace_address", F(Status, C.c_void_p, u64)),
    ]


class ModuleTable(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("global_", F(Status, H, C.c_char_p, P(u64), P(u64))),
        ("kernels", F(Status, H, P(C.c_char_p))),
        ("decode_all", F(Status, H, P(u64))),
    ]


class PeerTable(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("multicast_create", F(Status, P(u64), u32, u64, P(u64))),
        ("multicast_destroy", F(Status, u64)),
    ]


class ControlTable(C.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("set", F(Status, C.c_char_p, C.c_char_p)),
        ("finding_count", F(u32)),
        ("finding", F(C.c_char_p, u32)),
        ("clear", F(None)),
        ("statistics", F(None, P(Statistics))),
        ("printed", F(C.c_char_p)),
    ]


class SimError(RuntimeError):
    """A non-zero di_status; `status` is the code, the text is last_error()."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def build() -> Path:
    """Path of the library: DEEPINFER_CUDA_SIM_LIBRARY, else built (incrementally) from this tree."""
    given = os.environ.get("DEEPINFER_CUDA_SIM_LIBRARY")
    if given:
        return Path(given)
    whole = BUILD.parent  # the root build has the simulator as its subdirectory ptxsim
    tree = whole if (whole / "CMakeCache.txt").exists() and not (BUILD / "CMakeCache.txt").exists() else BUILD
    if not (tree / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(tree)], check=True, capture_output=True)
    command = ["cmake", "--build", str(tree), "--target", "deepinfer_cuda_sim", "-j2"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("the simulator does not build:\n" + (done.stdout + done.stderr)[-4000:])
    return BUILD / "libdeepinfer_cuda_sim.so"


@cache
def library() -> Table:
    lib = C.CDLL(str(build()))
    lib.di_get_driver.restype = P(Table)
    lib.di_get_driver.argtypes = [u32]
    _KEEP.append(lib)
    return lib.di_get_driver(1).contents


_KEEP: list[Any] = []


def check(status: int) -> None:
    if status:
        raise SimError(status, library().last_error().decode())


def extension(name: str, kind: type[Any]) -> Any:
    out = C.c_void_p()
    check(library().extension(name.encode(), C.byref(out)))
    return C.cast(out, P(kind)).contents


@dataclass
class Device:
    index: int
    ctx: int


@cache
def device(index: int) -> Device:
    out = H()
    check(library().open(index, C.byref(out)))
    return Device(index, out.value)


def configure(**options: Any) -> None:
    """Sets sim.control options; everything not named returns to its default."""
    control = extension("sim.control", ControlTable)
    defaults = {
        "seed": 0,
        "schedule": "eager",
        "checker": "on",
        "findings": "fail",
        "spurious_waits": "off",
        "stall_instructions": 20000000,
        "resident_ctas": 0,
    }
    for k, v in (defaults | options).items():
        check(control.set(k.encode(), str(v).encode()))
    control.clear()


def findings() -> list[str]:
    control = extension("sim.control", ControlTable)
    return [control.finding(i).decode() for i in range(control.finding_count())]


def printed() -> str:
    return extension("sim.control", ControlTable).printed().decode()


def statistics() -> Statistics:
    out = Statistics()
    extension("sim.control", ControlTable).statistics(C.byref(out))
    return out


class Module:
    """A loaded PTX text on one device."""

    def __init__(self, ptx: str, dev: int = SM90) -> None:
        self.dev = device(dev)
        self.handle = H()
        data = ptx.encode()
        check(library().module_load(self.dev.ctx, data, len(data), b"ptx", C.byref(self.handle)))

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self.handle.value:
            library().release(self.handle)

    def kernels(self) -> list[str]:
        out = C.c_char_p()
        check(extension("cuda.module", ModuleTable).kernels(self.handle, C.byref(out)))
        return [n for n in (out.value or b"").decode().split("\n") if n]

    def decode_all(self) -> int:
        out = u64()
        check(extension("cuda.module", ModuleTable).decode_all(self.handle, C.byref(out)))
        return out.value

    def function(self, name: str) -> int:
        out = H()
        check(library().function(self.handle, name.encode(), C.byref(out)))
        return out.value

    def launch(
        self,
        name: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        *args: Any,
        smem: int = 0,
        cluster: Sequence[int] | int = 0,
        stream: int = 0,
        wait: bool = True,
        cooperative: bool = False,
    ) -> None:
        fn = self.function(name)
        keep: list[Any] = []
        packed = [_argument(a, keep) for a in args]
        config = Config(
            C.sizeof(Config),
            _dim(grid),
            _dim(block),
            _dim(cluster) if cluster else Dim3(0, 0, 0),
            smem,
            0,
            int(cooperative),
        )
        check(
            extension("cuda.launch", LaunchTable).launch(
                fn, C.byref(config), (Arg * len(packed))(*packed), len(packed), stream
            )
        )
        if wait:
            check(library().stream_synchronize(self.dev.ctx, stream))


@dataclass
class Span:
    """Announces memory that a kernel reaches through pointers it was not handed directly."""

    array: np.ndarray
    writable: bool = True


@dataclass
class ReadOnly:
    array: np.ndarray


@dataclass
class Map:
    """A tensor map parameter; also announces the tensor behind it."""

    data: Any
    array: np.ndarray


def _dim(v: Sequence[int] | int) -> Dim3:
    t = (v,) if isinstance(v, int) else tuple(v)
    return Dim3(*((*t, 1, 1, 1))[:3])


def _argument(a: Any, keep: list[Any]) -> Arg:
    if isinstance(a, np.ndarray | ReadOnly | Span):
        arr = a if isinstance(a, np.ndarray) else a.array
        pointer = u64(arr.ctypes.data)
        keep.extend([pointer, arr])
        kind = 3 if isinstance(a, Span) else 2
        writable = not isinstance(a, ReadOnly) and (a.writable if isinstance(a, Span) else True)
        return Arg(kind, 8, C.addressof(pointer), arr.ctypes.data, arr.nbytes, int(writable), 0)
    if isinstance(a, Map):
        keep.append(a)
        return Arg(1, 128, C.addressof(a.data), 0, 0, 0, 0)
    if isinstance(a, C._SimpleCData | C.Structure):
        keep.append(a)
        return Arg(1, C.sizeof(a), C.addressof(a), 0, 0, 0, 0)
    if isinstance(a, int):
        return _argument(C.c_int32(a), keep)
    if isinstance(a, float):
        return _argument(C.c_float(a), keep)
    raise TypeError(f"argument of type {type(a).__name__} is not supported")


MAP_TYPES = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "s32": 3,
    "u64": 4,
    "s64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "tf32": 11,
    "u4_align8": 13,
    "u4_align16": 14,
    "u6_align16": 15,
}
SWIZZLES = {"none": 0, "32": 1, "64": 2, "128": 3, "128_atom32": 4, "128_atom32_flip8": 5, "128_atom64": 6}


def tensor_map(
    array: np.ndarray,
    dtype: str,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: str = "none",
    element_strides: Sequence[int] | None = None,
    nan_fill: bool = False,
) -> Map:
    """Encodes a tiled map. dims and box start with the innermost dimension; strides are bytes of the outer ones."""
    raw = (C.c_uint8 * (128 + 64))()
    offset = -C.addressof(raw) % 64
    data = (C.c_uint8 * 128).from_buffer(raw, offset)
    n = len(dims)
    check(
        extension("cuda.tensor_map", MapTable).encode_tiled(
            C.addressof(data),
            MAP_TYPES[dtype],
            n,
            array.ctypes.data,
            (u64 * n)(*dims),
            (u64 * max(n - 1, 1))(*strides),
            (u32 * n)(*box),
            (u32 * n)(*(element_strides or [1] * n)),
            0,
            SWIZZLES[swizzle],
            0,
            int(nan_fill),
        )
    )
    return Map(data, array)


def aligned(shape: Sequence[int] | int, dtype: Any, align: int = 256) -> np.ndarray:
    """Zeroed array whose first byte is aligned."""
    dt = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = np.zeros(count * dt.itemsize + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + count * dt.itemsize].view(dt).reshape(shape)
