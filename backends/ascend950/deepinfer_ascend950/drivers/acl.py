"""The hardware as a `Driver`: ACL, the vendor's runtime, loaded with dlopen on first use and never linked.

Never run: no Ascend device was available. Names and argument orders follow the vendor's public headers; a call that
fails raises `DriverError` with the runtime's own message. What is not here (peer memory, graphs) is refused by name.
"""

from __future__ import annotations

import ctypes as ct
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepinfer.errors import BackendUnavailable, DriverError, UnsupportedError, invalid
from deepinfer.hal.driver import Dim3
from deepinfer.hal.types import Arg, Cap, CopyKind, DeviceProps, DriverKind, Image, Probe

LIBRARY = "libascendcl.so"
SYMBOLS = (
    "aclInit",
    "aclGetRecentErrMsg",
    "aclrtSetDevice",
    "aclrtGetDeviceCount",
    "aclrtGetSocName",
    "aclrtGetMemInfo",
    "aclrtMalloc",
    "aclrtFree",
    "aclrtMemcpyAsync",
    "aclrtMemsetAsync",
    "aclrtCreateStream",
    "aclrtDestroyStream",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeDevice",
    "aclrtCreateEvent",
    "aclrtDestroyEvent",
    "aclrtRecordEvent",
    "aclrtStreamWaitEvent",
    "aclrtSynchronizeEvent",
    "aclrtEventElapsedTime",
    "aclrtBinaryLoadFromFile",
    "aclrtBinaryUnLoad",
    "aclrtBinaryGetFunction",
    "aclrtLaunchKernelWithHostArgs",
)
COPIES = {CopyKind.H2D: 1, CopyKind.D2H: 2, CopyKind.D2D: 3}  # aclrtMemcpyKind
MEM_HUGE_FIRST, HBM = 0, 1
AI_CORES, MEMORY, CLOCK_KHZ, BANDWIDTH = 32, 128 << 30, 1_650_000, 1_600_000_000_000


@lru_cache(maxsize=1)
def _open() -> tuple[ct.CDLL | None, str]:
    """(library, "") or (None, why not)."""
    try:
        library = ct.CDLL(LIBRARY)
    except OSError as error:
        return None, f"{LIBRARY} cannot be loaded: {error}"
    missing = [name for name in SYMBOLS if not hasattr(library, name)]
    if missing:
        return None, f"{LIBRARY} lacks {', '.join(missing)}: it is older than this backend needs"
    library.aclGetRecentErrMsg.restype = ct.c_char_p
    library.aclrtGetSocName.restype = ct.c_char_p
    return library, ""


def why_unavailable() -> str:
    """Why ACL cannot be used here, or "". Loads the library, calls nothing of it."""
    return _open()[1]


def pack(args: Sequence[Arg]) -> bytes:
    """The argument block of a launch: each argument at its own size's alignment (4 to 8), the whole in 8-byte units."""
    block = bytearray()
    for arg in args:
        if not arg.value:
            continue
        align = min(8, max(4, len(arg.value)))
        block += bytes(-len(block) % align) + arg.value
    return bytes(block + bytes(-len(block) % 8))


@dataclass
class _Handle:
    kind: str
    raw: ct.c_void_p
    device: int = 0


class AclDriver:
    """Driver of Ascend devices. Thread-safe: handles live in one locked table."""

    name = "ascend950/acl"
    kind = DriverKind.HARDWARE

    def __init__(self) -> None:
        library, reason = _open()
        if library is None:
            raise BackendUnavailable(
                "the Ascend runtime cannot be used", [reason], "install CANN and source its set_env.sh"
            )
        self._acl = library
        self._lock = threading.Lock()
        self._handles: dict[int, _Handle] = {}
        self._next = 1
        status = library.aclInit(None)
        if status not in (0, 100002):  # 100002: another component of the process has initialised it
            raise DriverError(f"{self.name}: aclInit", str(status), self._message())

    def _message(self) -> str:
        return (self._acl.aclGetRecentErrMsg() or b"").decode("utf-8", "replace")

    def _call(self, function: str, *args: Any) -> None:
        status = getattr(self._acl, function)(*args)
        if status:
            raise DriverError(f"{self.name}: {function}", str(status), self._message())

    def _add(self, kind: str, raw: ct.c_void_p, device: int) -> int:
        with self._lock:
            handle = self._next
            self._next += 1
            self._handles[handle] = _Handle(kind, raw, device)
            return handle

    def _get(self, handle: int, kind: str) -> _Handle:
        found = self._handles.get(handle)
        if found is None or found.kind != kind:
            raise invalid(kind, handle, f"must be a live {kind} of this driver")
        return found

    def _stream(self, stream: int) -> ct.c_void_p:
        return self._get(stream, "stream").raw if stream else ct.c_void_p(None)

    def probe(self) -> Probe:
        count = ct.c_uint32()
        status = self._acl.aclrtGetDeviceCount(ct.byref(count))
        if status:
            return Probe(False, reasons=(f"aclrtGetDeviceCount: {status} {self._message()}",))
        return Probe(count.value > 0, device_count=count.value)

    def device_props(self, index: int) -> DeviceProps:
        name = (self._acl.aclrtGetSocName() or b"").decode()
        caps = frozenset({Cap.BF16, Cap.FP16, Cap.FP8_E4M3, Cap.MXFP8, Cap.MXFP4, Cap.ASYNC_STREAMS})
        return DeviceProps(
            name=name,
            arch="ascend950",
            kind=self.kind,
            compute_units=AI_CORES,
            clock_khz=CLOCK_KHZ,
            memory_bytes=MEMORY,
            l2_bytes=128 << 20,
            scratch_bytes=253952,
            memory_bandwidth=BANDWIDTH,
            caps=caps,
        )

    def open(self, index: int) -> int:
        self._call("aclrtSetDevice", ct.c_int32(index))
        return self._add("context", ct.c_void_p(None), index)

    def release(self, handle: int) -> None:
        with self._lock:
            found = self._handles.pop(handle, None)
        if found is None:
            raise invalid("handle", handle, "must be a live handle of this driver")
        destroy = {"stream": "aclrtDestroyStream", "event": "aclrtDestroyEvent", "module": "aclrtBinaryUnLoad"}.get(
            found.kind
        )
        if destroy:
            self._call(destroy, found.raw)

    def mem_info(self, ctx: int) -> tuple[int, int]:
        free, total = ct.c_size_t(), ct.c_size_t()
        self._call("aclrtGetMemInfo", ct.c_int(HBM), ct.byref(free), ct.byref(total))
        return free.value, total.value

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int:
        if align > 512:
            raise UnsupportedError(f"{self.name} aligns memory to 512 bytes", [f"align {align}"])
        out = ct.c_void_p()
        self._call("aclrtMalloc", ct.byref(out), ct.c_size_t(max(nbytes, 1)), ct.c_int(MEM_HUGE_FIRST))
        return out.value or 0

    def mem_free(self, ctx: int, address: int) -> None:
        self._call("aclrtFree", ct.c_void_p(address))

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        size = ct.c_size_t(nbytes)
        self._call(
            "aclrtMemcpyAsync",
            ct.c_void_p(dst),
            size,
            ct.c_void_p(src),
            size,
            ct.c_int(COPIES[kind]),
            self._stream(stream),
        )

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None:
        size = ct.c_size_t(nbytes)
        self._call("aclrtMemsetAsync", ct.c_void_p(dst), size, ct.c_int32(value), size, self._stream(stream))

    def stream_create(self, ctx: int) -> int:
        out = ct.c_void_p()
        self._call("aclrtCreateStream", ct.byref(out))
        return self._add("stream", out, ctx)

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        if stream:
            self._call("aclrtSynchronizeStream", self._stream(stream))
        else:
            self._call("aclrtSynchronizeDevice")

    def event_create(self, ctx: int) -> int:
        out = ct.c_void_p()
        self._call("aclrtCreateEvent", ct.byref(out))
        return self._add("event", out, ctx)

    def event_record(self, ctx: int, event: int, stream: int) -> None:
        self._call("aclrtRecordEvent", self._get(event, "event").raw, self._stream(stream))

    def event_wait(self, ctx: int, event: int, stream: int) -> None:
        self._call("aclrtStreamWaitEvent", self._stream(stream), self._get(event, "event").raw)

    def event_synchronize(self, ctx: int, event: int) -> None:
        self._call("aclrtSynchronizeEvent", self._get(event, "event").raw)

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float:
        out = ct.c_float()
        self._call("aclrtEventElapsedTime", ct.byref(out), self._get(start, "event").raw, self._get(stop, "event").raw)
        return out.value

    def module_load(self, ctx: int, image: Image) -> int:
        """Load an image; bytes pass through a file because that is what the runtime takes."""
        out = ct.c_void_p()
        with tempfile.TemporaryDirectory(prefix="deepinfer-asc-") as folder:
            path = Path(image.data.decode()) if image.fmt == "path" else Path(folder) / f"{image.name}.o"
            if image.fmt == "elf":
                path.write_bytes(image.data)
            elif image.fmt != "path":
                raise UnsupportedError(f'{self.name} loads "elf" and "path" images', [f"fmt {image.fmt!r}"])
            self._call("aclrtBinaryLoadFromFile", str(path).encode(), None, ct.byref(out))
        return self._add("module", out, ctx)

    def function(self, module: int, name: str) -> int:
        out = ct.c_void_p()
        self._call("aclrtBinaryGetFunction", self._get(module, "module").raw, name.encode(), ct.byref(out))
        return self._add("function", out, module)

    def launch(self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int) -> None:
        if grid[1] > 1 or grid[2] > 1:
            raise invalid("grid", grid, "grids of this device have one dimension")
        block_bytes = pack(args)
        raw = ct.create_string_buffer(block_bytes, max(len(block_bytes), 1))
        self._call(
            "aclrtLaunchKernelWithHostArgs",
            self._get(fn, "function").raw,
            ct.c_uint32(grid[0]),
            self._stream(stream),
            None,
            raw,
            ct.c_size_t(len(block_bytes)),
            None,
            ct.c_size_t(0),
        )

    def extension(self, name: str) -> Any | None:
        return None


@lru_cache(maxsize=1)
def driver() -> AclDriver:
    """The process's one runtime."""
    return AclDriver()
