"""The hardware as a `Driver`: ACL, the vendor's runtime, loaded on first use and never linked (`acl_library.py`).

Never run: no Ascend device was available. Every call is made once in `tests/test_acl.py` against a stand-in library,
with its arguments compared and its failures raised. Graphs are refused by name.
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

from deepinfer.errors import DriverError, UnsupportedError, invalid
from deepinfer.hal.driver import Dim3
from deepinfer.hal.types import Arg, Cap, CopyKind, DeviceProps, DriverKind, Image, Probe
from deepinfer_ascend950.drivers.acl_library import Library, why_unavailable
from deepinfer_ascend950.drivers.acl_peer import EXTENSION, Peers, peers

COPIES = {CopyKind.H2D: 1, CopyKind.D2H: 2, CopyKind.D2D: 3}  # aclrtMemcpyKind
MEM_HUGE_FIRST, HBM = 0, 1
AICORES, GLOBAL_MEMORY, L2 = 101, 301, 302  # aclrtDevAttr
# The 950PR server part, where the runtime does not say (it must be asked: parts have 28, 32 or 36 cores).
AI_CORES, MEMORY, L2_BYTES, CLOCK_KHZ, BANDWIDTH = 32, 128 << 30, 128 << 20, 1_650_000, 1_600_000_000_000
ALIGNMENT = 512
CAPS = frozenset({Cap.BF16, Cap.FP16, Cap.FP8_E4M3, Cap.MXFP8, Cap.MXFP4, Cap.ASYNC_STREAMS})
DESTROY = {"stream": "aclrtDestroyStream", "event": "aclrtDestroyEvent", "module": "aclrtBinaryUnLoad"}

__all__ = ["AclDriver", "driver", "pack", "why_unavailable"]


def pack(args: Sequence[Arg]) -> bytes:
    """The argument block of a launch: each argument at its own size's alignment (4 to 8), the whole in 8-byte units."""
    block = bytearray()
    for arg in args:
        if not arg.value:
            continue
        align = min(8, max(4, len(arg.value)))
        block += bytes(-len(block) % align) + arg.value
    return bytes(block + bytes(-len(block) % 8))


@dataclass(frozen=True)
class _Handle:
    kind: str
    raw: ct.c_void_p
    device: int
    owned: bool = True


class AclDriver:
    """Driver of Ascend devices. Thread-safe: handles live in one locked table."""

    name = "ascend950/acl"
    kind = DriverKind.HARDWARE

    def __init__(self) -> None:
        self._library = Library(self.name)
        self._lock = threading.Lock()
        self._handles: dict[int, _Handle] = {}
        self._next = 1
        self._peers = peers(self._library, self.name)

    def _add(self, kind: str, raw: ct.c_void_p, device: int, owned: bool = True) -> int:
        with self._lock:
            handle = self._next
            self._next += 1
            self._handles[handle] = _Handle(kind, raw, device, owned)
            return handle

    def _get(self, handle: int, kind: str) -> _Handle:
        found = self._handles.get(handle)
        if found is None or found.kind != kind:
            raise invalid(kind, handle, f"must be a live {kind} of this driver")
        return found

    def _enter(self, ctx: int) -> int:
        """Index of a context's device, which later calls of this thread mean."""
        device = self._get(ctx, "context").device
        self._library.enter(device)
        return device

    def _stream(self, stream: int) -> ct.c_void_p:
        return self._get(stream, "stream").raw if stream else ct.c_void_p(None)

    def probe(self) -> Probe:
        count = ct.c_uint32()
        try:
            self._library.call("aclrtGetDeviceCount", ct.byref(count))
        except DriverError as error:  # a probe never raises
            return Probe(False, reasons=(str(error),))
        return Probe(count.value > 0, device_count=count.value, reasons=() if count.value else ("no device",))

    def device_props(self, index: int) -> DeviceProps:
        ask = self._library.attribute
        return DeviceProps(
            name=self._library.text("aclrtGetSocName"),
            arch="ascend950",
            kind=self.kind,
            compute_units=ask(index, AICORES, AI_CORES),
            clock_khz=CLOCK_KHZ,
            memory_bytes=ask(index, GLOBAL_MEMORY, MEMORY),
            l2_bytes=ask(index, L2, L2_BYTES),
            scratch_bytes=253952,
            memory_bandwidth=BANDWIDTH,
            caps=CAPS | {Cap.PEER_MEMORY} if self._peers is not None else CAPS,
        )

    def open(self, index: int) -> int:
        self._library.enter(index)
        return self._add("context", ct.c_void_p(None), index)

    def release(self, handle: int) -> None:
        with self._lock:
            found = self._handles.pop(handle, None)
        if found is None:
            raise invalid("handle", handle, "must be a live handle of this driver")
        if found.owned and found.kind in DESTROY:
            self._library.enter(found.device)
            self._library.call(DESTROY[found.kind], found.raw)

    def mem_info(self, ctx: int) -> tuple[int, int]:
        self._enter(ctx)
        free, total = ct.c_size_t(), ct.c_size_t()
        self._library.call("aclrtGetMemInfo", ct.c_int(HBM), ct.byref(free), ct.byref(total))
        return free.value, total.value

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int:
        if align > ALIGNMENT:
            raise UnsupportedError(f"{self.name} aligns memory to {ALIGNMENT} bytes", [f"align {align}"])
        self._enter(ctx)
        out = ct.c_void_p()
        self._library.call("aclrtMalloc", ct.byref(out), ct.c_size_t(max(nbytes, 1)), ct.c_int(MEM_HUGE_FIRST))
        return out.value or 0

    def mem_free(self, ctx: int, address: int) -> None:
        self._enter(ctx)
        self._library.call("aclrtFree", ct.c_void_p(address))

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        self._enter(ctx)
        to, origin, size = ct.c_void_p(dst), ct.c_void_p(src), ct.c_size_t(nbytes)
        self._library.call("aclrtMemcpyAsync", to, size, origin, size, ct.c_int(COPIES[kind]), self._stream(stream))

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None:
        self._enter(ctx)
        size = ct.c_size_t(nbytes)
        self._library.call("aclrtMemsetAsync", ct.c_void_p(dst), size, ct.c_int32(value), size, self._stream(stream))

    def stream_create(self, ctx: int) -> int:
        device, out = self._enter(ctx), ct.c_void_p()
        self._library.call("aclrtCreateStream", ct.byref(out))
        return self._add("stream", out, device)

    def adopt_stream(self, ctx: int, raw: int) -> int:
        """A handle of a stream that another library (torch_npu) made and destroys."""
        return self._add("stream", ct.c_void_p(raw), self._get(ctx, "context").device, owned=False)

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        self._enter(ctx)
        if stream:
            self._library.call("aclrtSynchronizeStream", self._stream(stream))
        else:
            self._library.call("aclrtSynchronizeDevice")

    def event_create(self, ctx: int) -> int:
        device, out = self._enter(ctx), ct.c_void_p()
        self._library.call("aclrtCreateEvent", ct.byref(out))
        return self._add("event", out, device)

    def event_record(self, ctx: int, event: int, stream: int) -> None:
        self._enter(ctx)
        self._library.call("aclrtRecordEvent", self._get(event, "event").raw, self._stream(stream))

    def event_wait(self, ctx: int, event: int, stream: int) -> None:
        self._enter(ctx)
        self._library.call("aclrtStreamWaitEvent", self._stream(stream), self._get(event, "event").raw)

    def event_synchronize(self, ctx: int, event: int) -> None:
        self._enter(ctx)
        self._library.call("aclrtSynchronizeEvent", self._get(event, "event").raw)

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float:
        self._enter(ctx)
        out, first, last = ct.c_float(), self._get(start, "event").raw, self._get(stop, "event").raw
        self._library.call("aclrtEventElapsedTime", ct.byref(out), first, last)
        return out.value

    def module_load(self, ctx: int, image: Image) -> int:
        """Load an image; bytes pass through a file because that is what the runtime takes."""
        device, out = self._enter(ctx), ct.c_void_p()
        with tempfile.TemporaryDirectory(prefix="deepinfer-asc-") as folder:
            path = Path(image.data.decode()) if image.fmt == "path" else Path(folder) / f"{image.name}.o"
            if image.fmt == "elf":
                path.write_bytes(image.data)
            elif image.fmt != "path":
                raise UnsupportedError(f'{self.name} loads "elf" and "path" images', [f"fmt {image.fmt!r}"])
            self._library.call("aclrtBinaryLoadFromFile", str(path).encode(), None, ct.byref(out))
        return self._add("module", out, device)

    def function(self, module: int, name: str) -> int:
        found, out = self._get(module, "module"), ct.c_void_p()
        self._library.call("aclrtBinaryGetFunction", found.raw, name.encode(), ct.byref(out))
        return self._add("function", out, found.device)

    def launch(self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int) -> None:
        if grid[1] > 1 or grid[2] > 1:
            raise invalid("grid", grid, "grids of this device have one dimension")
        found, packed = self._get(fn, "function"), pack(args)
        self._library.enter(found.device)
        self._library.call(
            "aclrtLaunchKernelWithHostArgs",
            found.raw,
            ct.c_uint32(grid[0]),
            self._stream(stream),
            None,
            ct.create_string_buffer(packed, max(len(packed), 1)),
            ct.c_size_t(len(packed)),
            None,
            ct.c_size_t(0),
        )

    def extension(self, name: str) -> Peers | Any | None:
        return self._peers if name == EXTENSION else None


@lru_cache(maxsize=1)
def driver() -> AclDriver:
    """The process's one runtime."""
    return AclDriver()
