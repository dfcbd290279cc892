"""A Triton specialisation loaded on a device, and launches of it through the device's own driver."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deepinfer.config import cache_dir
from deepinfer.hal import Arg, Device, Executable, Image, Stream
from deepinfer.hal.driver_device import tensor_arg
from deepinfer.jit import BuildCache
from deepinfer_triton.compile import TritonBuild, TritonCompiler, unpack

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8", torch.int8: "*i8", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1",
}
_lock = threading.Lock()
_loaded: weakref.WeakKeyDictionary[Device, dict[str, TritonCode]] = weakref.WeakKeyDictionary()
_SCRATCH = (Arg(bytes(8)), Arg(bytes(8)))  # global and profiling scratch pointers, which our kernels do not use


@dataclass(frozen=True)
class TritonCode:
    """Loaded code with what a launch needs to know."""

    executable: Executable
    entry: str
    threads: int
    shared: int

    def prepare(self, grid: tuple[int, int, int], args: Sequence[Arg]) -> Callable[[Stream], None]:
        """A launch to repeat; `args` without the scratch pointers that Triton appends."""
        block = (self.threads, 1, 1)
        return self.executable.prepare(self.entry, grid, block, [*args, *_SCRATCH], smem_bytes=self.shared)


def load(device: Device, build: TritonBuild, cache: BuildCache | None = None) -> TritonCode:
    """Compile (or fetch from the cache) and load `build` for `device`; once per device and specialisation."""
    fmt = "ptx" if device.simulated else "cubin"
    compiler = TritonCompiler(build)
    request = build.as_build(device.props.arch, fmt)
    key = request.key(compiler.identity())
    with _lock:
        codes = _loaded.setdefault(device, {})
        if key not in codes:
            compiled = (cache or BuildCache([cache_dir() / "jit"])).get(request, compiler)
            header, code = unpack(compiled.image)
            executable = device.load(Image(code, fmt, build.name))
            codes[key] = TritonCode(executable, header["entry"], header["threads"], header["shared"])
        return codes[key]


def pointer(tensor: torch.Tensor, writable: bool = False) -> Arg:
    """A tensor argument."""
    return tensor_arg(tensor, writable)


def number(value: int | float) -> tuple[str, Arg]:
    """(Triton type, argument) of a scalar: the narrowest of i32 and i64 for integers, float32 for floats."""
    if isinstance(value, float):
        return "fp32", Arg(struct.pack("<f", value))
    if -(2**31) <= value < 2**31:
        return "i32", Arg(struct.pack("<i", value))
    return "i64", Arg(struct.pack("<q", value))
