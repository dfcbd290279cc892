"""The hardware driver: `deepinfer.hal.Driver` over cuda.bindings, on each device's primary context (torch's own).

Handles are CUDA's pointers. A context handle is the device index + 1, because the primary context is shared and must
be current in the calling thread, which every function sees to. What was current before is so again afterwards: torch's
current device is the current context, and stays what its user made it. Launch attributes (clusters, programmatic
dependent launch), tensor maps, graphs and peer memory are extensions.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cuda.bindings import driver as cu

from deepinfer.errors import UnsupportedError, invalid
from deepinfer.hal import Arg, Cap, CopyKind, DeviceProps, DriverKind, Image, Probe
from deepinfer.hal.driver import Dim3
from deepinfer.hal.driver_device import DriverStream
from deepinfer_cuda import detect
from deepinfer_cuda.result import check

_HOPPER = {Cap.BF16, Cap.FP16, Cap.FP8_E4M3, Cap.GRAPHS, Cap.PEER_MEMORY, Cap.TENSOR_MAPS, Cap.CLUSTERS,
           Cap.ASYNC_STREAMS, Cap.DEVICE_TIMER}
_BLACKWELL = _HOPPER | {Cap.MXFP8, Cap.MXFP4}


class CudaDriver:
    """Thread-safe; one instance per process."""

    name = "cuda"
    kind = DriverKind.HARDWARE

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._homes: dict[int, int] = {}  # contexts of modules and of functions
        self._kinds: dict[int, tuple[str, Callable[[], None]]] = {}
        self._bases: dict[int, int] = {}  # allocations handed out at another address than the driver's
        self._guard = threading.Lock()

    def probe(self) -> Probe:
        return detect.probe()

    def device_props(self, index: int) -> DeviceProps:
        name, arch = detect.architectures()[index]
        device = check("cuDeviceGet", cu.cuDeviceGet(index))
        total = check("cuDeviceTotalMem", cu.cuDeviceTotalMem(device))
        a = cu.CUdevice_attribute

        def ask(which: Any) -> int:
            return int(check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(which, device)))

        bus = ask(a.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        memory_khz = ask(a.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        return DeviceProps(
            name=name, arch=arch, kind=DriverKind.HARDWARE, memory_bytes=total,
            compute_units=ask(a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            clock_khz=ask(a.CU_DEVICE_ATTRIBUTE_CLOCK_RATE), l2_bytes=ask(a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            scratch_bytes=ask(a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            memory_bandwidth=2 * memory_khz * 1000 * bus // 8,
            caps=frozenset(_BLACKWELL if arch.startswith("sm_10") else _HOPPER),
        )

    def open(self, index: int) -> int:
        check("cuInit", cu.cuInit(0))  # at once after the first time
        device = check("cuDeviceGet", cu.cuDeviceGet(index))
        with self._guard:
            if index + 1 not in self._contexts:
                self._contexts[index + 1] = check("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(device))
        return index + 1

    @contextlib.contextmanager
    def within(self, ctx: int) -> Iterator[None]:
        """Context `ctx` is current in the calling thread inside the block; one that had none keeps it."""
        if ctx not in self._contexts:
            raise invalid("ctx", ctx, "must be a context from open()")
        before = check("cuCtxGetCurrent", cu.cuCtxGetCurrent())
        check("cuCtxSetCurrent", cu.cuCtxSetCurrent(self._contexts[ctx]))
        try:
            yield
        finally:
            if int(before):
                check("cuCtxSetCurrent", cu.cuCtxSetCurrent(before))

    def enable_peer(self, ctx: int, peer: int) -> None:
        """Let work of context `ctx` reach the memory of context `peer`; once enabled it stays so."""
        for name, handle in (("ctx", ctx), ("peer", peer)):
            if handle not in self._contexts:
                raise invalid(name, handle, "must be a context from open()")
        devices = [check("cuDeviceGet", cu.cuDeviceGet(handle - 1)) for handle in (ctx, peer)]
        if not check("cuDeviceCanAccessPeer", cu.cuDeviceCanAccessPeer(*devices)):
            reason = "the driver reports no path between the two GPUs (cuDeviceCanAccessPeer)"
            raise UnsupportedError(f"CUDA device {ctx - 1} cannot reach the memory of device {peer - 1}", [reason])
        with self.within(ctx):
            (status,) = cu.cuCtxEnablePeerAccess(self._contexts[peer], 0)
            if status != cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
                check("cuCtxEnablePeerAccess", (status,))

    def release(self, handle: int) -> None:
        if handle in self._contexts:
            del self._contexts[handle]
            device = check("cuDeviceGet", cu.cuDeviceGet(handle - 1))
            check("cuDevicePrimaryCtxRelease", cu.cuDevicePrimaryCtxRelease(device))
            return
        with self._guard:
            end = self._kinds.pop(handle, None)
        if end is None:
            raise invalid("handle", handle, "must be a live handle of this driver")
        end[1]()

    def _own(self, kind: str, handle: int, end: Callable[[], None]) -> int:
        with self._guard:
            self._kinds[handle] = kind, end
        return handle

    def _require(self, kind: str, handle: int) -> int:
        """`handle`, which must be a live `kind` of this driver: CUDA itself crashes on others. Stream 0 always is."""
        if (kind != "stream" or handle) and self._kinds.get(handle, ("",))[0] != kind:
            raise invalid(kind, handle, f"must be a live {kind} of this driver")
        return handle

    def mem_info(self, ctx: int) -> tuple[int, int]:
        with self.within(ctx):
            free, total = check("cuMemGetInfo", cu.cuMemGetInfo())
            return int(free), int(total)

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int:
        if align < 1 or align & (align - 1):
            raise invalid("align", align, "must be a power of two", nearest=256)
        with self.within(ctx):
            room = align if align > 256 else 0  # cuMemAlloc's addresses are multiples of 256
            base = int(check("cuMemAlloc", cu.cuMemAlloc(max(nbytes, 1) + room)))
            address = base if not room else (base + align - 1) // align * align
            if address != base:
                with self._guard:
                    self._bases[address] = base
            return address

    def mem_free(self, ctx: int, address: int) -> None:
        with self.within(ctx):
            with self._guard:
                base = self._bases.pop(address, address)
            check("cuMemFree", cu.cuMemFree(base))

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        with self.within(ctx):
            if nbytes:
                check("cuMemcpyAsync", cu.cuMemcpyAsync(dst, src, nbytes, self._require("stream", stream)))

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None:
        with self.within(ctx):
            if nbytes:
                check("cuMemsetD8Async", cu.cuMemsetD8Async(dst, value, nbytes, self._require("stream", stream)))

    def stream_create(self, ctx: int) -> int:
        with self.within(ctx):
            stream = check("cuStreamCreate", cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
            return self._own("stream", int(stream), lambda: check("cuStreamDestroy", cu.cuStreamDestroy(stream)))

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        with self.within(ctx):
            check("cuStreamSynchronize", cu.cuStreamSynchronize(self._require("stream", stream)))

    def event_create(self, ctx: int) -> int:
        with self.within(ctx):
            event = check("cuEventCreate", cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DEFAULT))
            return self._own("event", int(event), lambda: check("cuEventDestroy", cu.cuEventDestroy(event)))

    def event_record(self, ctx: int, event: int, stream: int) -> None:
        with self.within(ctx):
            check("cuEventRecord", cu.cuEventRecord(self._require("event", event), self._require("stream", stream)))

    def event_wait(self, ctx: int, event: int, stream: int) -> None:
        with self.within(ctx):
            where = self._require("stream", stream)
            check("cuStreamWaitEvent", cu.cuStreamWaitEvent(where, self._require("event", event), 0))

    def event_synchronize(self, ctx: int, event: int) -> None:
        with self.within(ctx):
            check("cuEventSynchronize", cu.cuEventSynchronize(self._require("event", event)))

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float:
        with self.within(ctx):
            pair = self._require("event", start), self._require("event", stop)
            return float(check("cuEventElapsedTime", cu.cuEventElapsedTime(*pair)))

    def module_load(self, ctx: int, image: Image) -> int:
        if image.fmt not in ("cubin", "ptx"):
            raise invalid("image.fmt", image.fmt, "must be 'cubin' or 'ptx'", nearest="'cubin'")
        with self.within(ctx):
            module = check("cuModuleLoadData", cu.cuModuleLoadData(image.data + b"\0"))
            self._homes[int(module)] = ctx
            return self._own("module", int(module), lambda: check("cuModuleUnload", cu.cuModuleUnload(module)))

    def function(self, module: int, name: str) -> int:
        home = self._homes[self._require("module", module)]
        with self.within(home):
            found = int(check("cuModuleGetFunction", cu.cuModuleGetFunction(module, name.encode())))
        self._homes[found] = home
        return found

    def place(self, fn: int) -> Place:
        """Where launches of function `fn` belong."""
        if fn not in self._homes:
            raise invalid("fn", fn, "must be a function of this driver")
        return Place(self, self._homes[fn])

    def launch(
        self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int
    ) -> None:
        from deepinfer_cuda.launch import Prepared

        target = DriverStream(self, 0, 0)
        target.handle = stream
        Prepared(fn, grid, block, smem_bytes, args, place=self.place(fn))(target)

    def extension(self, name: str) -> Any | None:
        return None


class Place:
    """The context of a kernel. Processes with one device never ask what is current: it can only be that one."""

    def __init__(self, driver: CudaDriver, ctx: int) -> None:
        self._driver, self._ctx = driver, ctx
        self._handle = int(driver._contexts[ctx])
        self._several = check("cuDeviceGetCount", cu.cuDeviceGetCount()) > 1

    def elsewhere(self) -> bool:
        """Whether the calling thread works on another device."""
        return bool(self._several) and int(cu.cuCtxGetCurrent()[1]) != self._handle

    def within(self) -> contextlib.AbstractContextManager[None]:
        return self._driver.within(self._ctx)


def parameter_block(args: Sequence[Arg]) -> tuple[ctypes.Array[ctypes.c_void_p], list[Any]]:
    """The `void* params[]` of a launch and the buffers it points into (spans are for simulators and are left out)."""
    buffers = [_aligned(arg.value) for arg in args if arg.value]
    pointers = (ctypes.c_void_p * max(len(buffers), 1))()
    for index, (_, address) in enumerate(buffers):
        pointers[index] = address
    return pointers, buffers


def _aligned(value: bytes) -> tuple[Any, int]:
    """A copy of `value` on a 64-byte boundary, as tensor maps need."""
    raw = ctypes.create_string_buffer(len(value) + 64)
    address = (ctypes.addressof(raw) + 63) // 64 * 64
    ctypes.memmove(address, value, len(value))
    return raw, address
