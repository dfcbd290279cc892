"""What runs in processes that have the fake libcuda loaded: `python scenarios.py NAME [library to load by path]`.

Each scenario raises on the first thing that is not as on a real driver. Loading by path makes later loads by soname
find the library, which is how a process without LD_PRELOAD is served.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

if len(sys.argv) > 2:
    ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)

import pytest
from cuda.bindings import driver as cu

R = cu.CUresult
ADD_ONE = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .global .align 8 .u64 counter = 7;
.visible .entry add_one(.param .u64 data, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r4, %r2, %r3, %r4;
    setp.ge.u32 %p, %r4, %r1;
    @%p bra END;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd3], %r5;
END:
    ret;
}
.visible .entry cluster_rank(.param .u64 data)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %cluster_ctarank;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
.visible .entry race(.param .u64 data)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [data];
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry forever()
{
    .shared .align 8 .b64 bar;
    .reg .pred %p;
    mbarrier.init.shared::cta.b64 [bar], 1;
AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;
    @!%p bra AGAIN;
    ret;
}
"""


def ok(result: tuple[Any, ...]) -> Any:
    assert result[0] == R.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def refused(code: R, result: tuple[Any, ...]) -> None:
    assert result[0] == code, f"{result[0]} instead of {code}"


def start(index: int = 0) -> Any:
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(index))
    ok(cu.cuCtxSetCurrent(context))
    return context


def kernel(name: str) -> Any:
    return ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(ADD_ONE)), name.encode()))


def params(*values: Any) -> tuple[Any, Any]:
    """The `void*[]` of a launch; keep the second result alive."""
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    return ctypes.addressof(pointers), (pointers, values)


def launch(
    fn: Any, grid: int, block: int, *values: Any, stream: Any = 0, shared: int = 0, cluster: int = 0
) -> tuple[Any, ...]:
    address, keep = params(*values)
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes, config.hStream = shared, cu.CUstream(int(stream))
    if cluster:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        shape = attribute.value.clusterDim
        shape.x, shape.y, shape.z = cluster, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
    found: tuple[Any, ...] = cu.cuLaunchKernelEx(config, fn, address, 0)
    del keep
    return found


def words(address: int, count: int) -> list[int]:
    out = (ctypes.c_uint32 * count)()
    ok(cu.cuMemcpyDtoH(ctypes.addressof(out), address, ctypes.sizeof(out)))
    return list(out)


def u64(value: Any) -> ctypes.c_uint64:
    return ctypes.c_uint64(int(value))


def open_and_probe() -> None:
    from deepinfer_cuda import detect
    from deepinfer_cuda.driver import CudaDriver

    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "dev").mkdir()
        (Path(root) / "dev/nvidia0").touch()
        probe = detect.probe(Path(root))
        assert probe.available, probe
        assert probe.device_count == 1, probe
    found = detect.architectures()
    driver = CudaDriver()
    props = [driver.device_props(index) for index in range(len(found))]
    print([(p.name, p.arch, p.compute_units, p.memory_bandwidth) for p in props])
    context = driver.open(0)
    free, total = driver.mem_info(context)
    assert free == total == props[0].memory_bytes
    driver.release(context)


def handles_and_errors() -> None:
    """Everything wrong is a code; nothing stale or foreign is used."""
    refused(R.CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount())
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuInit(1))
    ok(cu.cuInit(0))
    refused(R.CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(2))
    refused(R.CUDA_ERROR_INVALID_CONTEXT, cu.cuMemAlloc(16))
    context = start()
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemAlloc(0))
    refused(R.CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemAlloc(1 << 60))
    memory = ok(cu.cuMemAlloc(64))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD8(memory, 0, 65))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32(int(memory) + 2, 0, 1))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemcpy(int(memory), 4096, 16))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(int(memory) + 16))
    assert ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory)) == 0
    ok(cu.cuMemFree(memory))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(memory))
    for bogus in (3, 0x7FFF0000, 0x10008):
        refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuStreamSynchronize(cu.CUstream(bogus)))
        refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuEventQuery(cu.CUevent(bogus)))
        refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuModuleUnload(cu.CUmodule(bogus)))
        refused(R.CUDA_ERROR_INVALID_HANDLE, launch(cu.CUfunction(bogus), 1, 1))
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventQuery(event))
    refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(event, event))
    unknown = ADD_ONE.replace(b"mad.lo.u32", b"frobnicate.u32")
    refused(R.CUDA_ERROR_INVALID_PTX, cu.cuModuleLoadData(unknown))
    refused(R.CUDA_ERROR_NO_BINARY_FOR_GPU, cu.cuModuleLoadData(b"\x7fELF\2\1\1" + bytes(64)))
    refused(R.CUDA_ERROR_NO_BINARY_FOR_GPU, cu.cuModuleLoadData(ADD_ONE.replace(b"sm_90", b"sm_100a")))
    module = ok(cu.cuModuleLoadData(ADD_ONE))
    refused(R.CUDA_ERROR_NOT_FOUND, cu.cuModuleGetFunction(module, b"absent"))
    address, size = ok(cu.cuModuleGetGlobal(module, b"counter"))
    assert (words(address, 2), size) == ([7, 0], 8)
    with pytest.raises(RuntimeError, match="cuArrayDestroy"):  # an entry point that the fake driver lacks
        cu.cuArrayDestroy(0)
    ok(cu.cuDevicePrimaryCtxRelease(0))
    refused(R.CUDA_ERROR_CONTEXT_IS_DESTROYED, cu.cuMemAlloc(16))
    refused(R.CUDA_ERROR_CONTEXT_IS_DESTROYED, cu.cuCtxSetCurrent(context))


def launches() -> None:
    start()
    add, rank = kernel("add_one"), kernel("cluster_rank")
    data = ok(cu.cuMemAlloc(4 * 100))
    ok(cu.cuMemsetD32(data, 5, 100))
    stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    ok(launch(add, 4, 32, u64(data), ctypes.c_uint32(100), stream=stream))
    ok(cu.cuStreamSynchronize(stream))
    assert words(int(data), 100) == [6] * 100
    refused(R.CUDA_ERROR_INVALID_VALUE, launch(add, 0, 32, u64(data), ctypes.c_uint32(1)))
    refused(R.CUDA_ERROR_INVALID_VALUE, launch(add, 1, 1025, u64(data), ctypes.c_uint32(1)))
    refused(R.CUDA_ERROR_INVALID_VALUE, launch(add, 1, 32, u64(data), ctypes.c_uint32(1), shared=49153))
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuFuncSetAttribute(add, attribute, 232449))
    ok(cu.cuFuncSetAttribute(add, attribute, 100_000))
    ok(launch(add, 1, 32, u64(data), ctypes.c_uint32(1), shared=100_000))
    ok(launch(rank, 8, 1, u64(data), cluster=4))
    assert words(int(data), 8) == [0, 1, 2, 3] * 2
    refused(R.CUDA_ERROR_INVALID_VALUE, launch(rank, 6, 1, u64(data), cluster=4))
    refused(R.CUDA_ERROR_INVALID_CLUSTER_SIZE, launch(rank, 16, 1, u64(data), cluster=16))
    wide = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    ok(cu.cuFuncSetAttribute(rank, wide, 1))
    ok(launch(rank, 16, 1, u64(data), cluster=16))
    assert words(int(data), 16) == list(range(16))
    library = ok(cu.cuLibraryLoadData(ADD_ONE, [], [], 0, [], [], 0))
    same = ok(cu.cuLibraryGetKernel(library, b"add_one"))
    assert ok(cu.cuKernelGetParamInfo(same, 1)) == (8, 4)
    ok(launch(cu.CUfunction(int(same)), 1, 16, u64(data), ctypes.c_uint32(16)))
    assert words(int(data), 16) == list(range(1, 17))


def order_and_events() -> None:
    """Streams, events of other streams, host functions, memory in stream order."""
    start()
    add = kernel("add_one")
    first, second = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
    begin, end = (ok(cu.cuEventCreate(0)) for _ in range(2))
    data = ok(cu.cuMemAllocAsync(64, first))
    ok(cu.cuMemsetD32Async(data, 0, 16, first))
    ok(cu.cuEventRecord(begin, first))
    ok(cu.cuStreamWaitEvent(second, begin, 0))
    for _ in range(3):
        ok(launch(add, 1, 16, u64(data), ctypes.c_uint32(16), stream=second))
    ok(cu.cuEventRecord(end, second))
    ok(cu.cuEventSynchronize(end))
    assert words(int(data), 16) == [3] * 16
    assert ok(cu.cuEventElapsedTime(begin, end)) > 0
    untimed = ok(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    ok(cu.cuEventRecord(untimed, second))
    refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(begin, untimed))
    ok(cu.cuMemFreeAsync(data, second))
    ok(cu.cuStreamSynchronize(second))
    refused(R.CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32(data, 0, 1))
    seen: list[int] = []
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(1))
    ok(cu.cuLaunchHostFunc(first, cu.CUhostFn(ctypes.cast(call, ctypes.c_void_p).value), 0))
    ok(cu.cuStreamSynchronize(first))
    assert seen == [1]
    codes: list[Any] = []
    worker = threading.Thread(target=lambda: codes.append(cu.cuMemAlloc(16)[0]))  # contexts are current per thread
    worker.start()
    worker.join()
    assert codes == [R.CUDA_ERROR_INVALID_CONTEXT], codes


def capture() -> None:
    start()
    add = kernel("add_one")
    stream, side = (ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
    data = ok(cu.cuMemAlloc(64))
    ok(cu.cuMemsetD32(data, 0, 16))
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    fork, joined = (ok(cu.cuEventCreate(0)) for _ in range(2))
    ok(cu.cuStreamBeginCapture(stream, mode))
    refused(R.CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamBeginCapture(stream, mode))
    ok(launch(add, 1, 16, u64(data), ctypes.c_uint32(16), stream=stream))
    ok(cu.cuEventRecord(fork, stream))
    ok(cu.cuStreamWaitEvent(side, fork, 0))
    ok(launch(add, 1, 16, u64(data), ctypes.c_uint32(8), stream=side))
    ok(cu.cuEventRecord(joined, side))
    ok(cu.cuStreamWaitEvent(stream, joined, 0))
    graph = ok(cu.cuStreamEndCapture(stream))
    assert words(int(data), 16) == [0] * 16, "captured work must not run"
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        ok(cu.cuGraphLaunch(executable, stream))
    ok(cu.cuStreamSynchronize(stream))
    assert words(int(data), 16) == [4] * 8 + [2] * 8
    ok(cu.cuStreamBeginCapture(stream, mode))
    refused(R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(stream))
    refused(R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.cuStreamEndCapture(stream))
    ok(cu.cuStreamBeginCapture(stream, mode))
    ok(cu.cuEventRecord(fork, stream))
    ok(cu.cuStreamWaitEvent(side, fork, 0))
    refused(R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cu.cuStreamEndCapture(stream))
    refused(R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamBeginCapture(0, mode))
    ok(cu.cuGraphExecDestroy(executable))
    refused(R.CUDA_ERROR_INVALID_HANDLE, cu.cuGraphLaunch(executable, stream))


def faults() -> None:
    """A fault sticks to the context until it is reset; the launch itself had returned."""
    add, race, forever = "add_one", "race", "forever"
    for name, grid, block, values, code in (
        (add, 1, 32, lambda p: (u64(p), ctypes.c_uint32(17)), R.CUDA_ERROR_ILLEGAL_ADDRESS),
        (race, 1, 64, lambda p: (u64(p),), R.CUDA_ERROR_LAUNCH_FAILED),
        (forever, 1, 1, lambda p: (), R.CUDA_ERROR_LAUNCH_TIMEOUT),
    ):
        start()
        fn, data = kernel(name), ok(cu.cuMemAlloc(64))
        ok(cu.cuMemsetD32(data, 0, 16))
        ok(launch(fn, grid, block, *values(data)))
        refused(code, cu.cuCtxSynchronize())
        refused(code, cu.cuMemAlloc(16))
        assert ok(cu.cuGetErrorName(code)).decode() == code.name
        ok(cu.cuDevicePrimaryCtxReset(0))
        ok(cu.cuMemAlloc(16))


def peers() -> None:
    """A kernel reaches another device's memory once its context has asked for it; copies always do."""
    one, two = start(0), start(1)
    remote = ok(cu.cuMemAlloc(64))
    ok(cu.cuMemsetD32(remote, 1, 16))
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 1
    ok(cu.cuCtxSetCurrent(one))
    add, local = kernel("add_one"), ok(cu.cuMemAlloc(64))
    refused(R.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cu.cuCtxDisablePeerAccess(two))
    ok(cu.cuCtxEnablePeerAccess(two, 0))
    refused(R.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cu.cuCtxEnablePeerAccess(two, 0))
    ok(launch(add, 1, 16, u64(remote), ctypes.c_uint32(16)))
    ok(cu.cuMemcpyPeer(local, one, remote, two, 64))
    assert words(int(local), 16) == [2] * 16
    ok(cu.cuCtxDisablePeerAccess(two))
    ok(launch(add, 1, 16, u64(remote), ctypes.c_uint32(16)))
    refused(R.CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize())


def products_and_norm() -> None:
    """Shipped kernels through the usual dispatch: clusters, tensor maps, large shared memory, and a Triton kernel."""
    import torch
    from hostdevice import HostLayerDevice

    import deepinfer
    from deepinfer.ops import deep_gmm, norm

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    numbers = lambda *shape: torch.randint(-4, 5, shape, generator=generator).bfloat16()  # noqa: E731
    device = HostLayerDevice()
    with deepinfer.use_backend(device):
        for rows, cols, depth in ((300, 136, 200), (9, 264, 72)):
            a, b = numbers(rows, depth), numbers(cols, depth)
            want = (a.double() @ b.double().t()).bfloat16()
            assert torch.equal(deep_gmm.gemm(a, b), want), "seed 5"
        a, b = numbers(200, 136), numbers(3, 128, 136)
        counts = torch.tensor([70, 0, 129], dtype=torch.int32)
        got = deep_gmm.grouped_gemm(a, b, counts)
        for start_row, end_row, group in ((0, 70, 0), (70, 199, 2)):
            want = (a[start_row:end_row].double() @ b[group].double().t()).bfloat16()
            assert torch.equal(got[start_row:end_row], want), "seed 5"
        if find_triton():
            x, weight = torch.randn(5, 96, generator=generator), torch.randn(96, generator=generator)
            want = torch.nn.functional.rms_norm(x.double(), (96,), weight.double(), 1e-6)
            assert (norm.rms_norm(x, weight) - want).abs().max() < 1e-5, "seed 5"
    assert not device.statistics, f"ran on the portable tier: {device.statistics}"


def find_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None


def cuda_core() -> None:
    """cuda-core's objects: device, stream, event, PTX module, cluster launch, pool memory."""
    from cuda.core import Device, LaunchConfig, ObjectCode
    from cuda.core import launch as enqueue

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    code = ObjectCode.from_ptx(ADD_ONE)
    buffer = device.allocate(64, stream=stream)
    ok(cu.cuMemsetD32Async(int(buffer.handle), 0, 16, stream.handle))
    enqueue(stream, LaunchConfig(grid=2, block=8), code.get_kernel("add_one"), buffer, ctypes.c_uint32(16))
    stream.sync()
    assert words(int(buffer.handle), 16) == [1] * 16
    enqueue(stream, LaunchConfig(grid=2, cluster=4, block=1), code.get_kernel("cluster_rank"), buffer)
    event = stream.record()
    event.sync()
    assert words(int(buffer.handle), 8) == [0, 1, 2, 3] * 2
    buffer.close(stream)
    stream.sync()


SCENARIOS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (
        open_and_probe, handles_and_errors, launches, order_and_events, capture, faults, peers, products_and_norm,
        cuda_core,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
    print(sys.argv[1], "holds")
