"""The example backend written in C, driven through the ABI adapter: every driver function, and its errors."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import deepinfer
from deepinfer.errors import AbiError, BackendUnavailable, DriverError, InvalidArgument, UnsupportedError
from deepinfer.hal import Arg, CopyKind, Device, DriverKind, Image, cabi_types
from deepinfer.hal.cabi import CDriver
from deepinfer.hal.driver import Driver
from deepinfer.registry import kernels as kernel_table
from deepinfer.registry import pin


@pytest.fixture
def driver(example_plugin: ModuleType) -> CDriver:
    return CDriver(example_plugin.BUILD / "libexample_c_driver.so")


@pytest.fixture
def example_device(example_plugin: ModuleType) -> Iterator[Device]:
    deepinfer.register_backend("example_c", lambda: example_plugin.ExampleBackend(example_plugin.BUILD))
    yield deepinfer.set_backend("example_c:1")
    kernel_table.forget("example_c")
    deepinfer.hal.unregister_backend("example_c")


def test_adapter_satisfies_the_protocol(driver: CDriver) -> None:
    assert isinstance(driver, Driver)
    assert driver.kind is DriverKind.HOST
    probe = driver.probe()
    assert (probe.available, probe.device_count) == (True, 2)


def test_memory_copies_and_fills(driver: CDriver) -> None:
    ctx = driver.open(0)
    source = torch.arange(64, dtype=torch.uint8)
    target = torch.zeros(64, dtype=torch.uint8)
    block = driver.mem_alloc(ctx, 64, 256)
    assert block % 256 == 0
    driver.memcpy_async(ctx, block, source.data_ptr(), 64, CopyKind.H2D, 0)
    driver.memset_async(ctx, block + 60, 7, 4, 0)
    driver.memcpy_async(ctx, target.data_ptr(), block, 64, CopyKind.D2H, 0)
    driver.stream_synchronize(ctx, 0)
    assert target.tolist() == [*range(60), 7, 7, 7, 7]
    free, total = driver.mem_info(ctx)
    assert 0 < free <= total
    driver.mem_free(ctx, block)
    driver.release(ctx)


def test_events_order_and_time(driver: CDriver) -> None:
    ctx = driver.open(0)
    stream, start, stop = driver.stream_create(ctx), driver.event_create(ctx), driver.event_create(ctx)
    with pytest.raises(DriverError, match="never recorded"):
        driver.event_elapsed_ms(ctx, start, stop)
    driver.event_record(ctx, start, stream)
    driver.event_wait(ctx, start, 0)
    driver.event_record(ctx, stop, 0)
    driver.event_synchronize(ctx, stop)
    assert driver.event_elapsed_ms(ctx, start, stop) >= 0.0
    driver.release(ctx)
    with pytest.raises(DriverError, match="not a context"):
        driver.stream_create(ctx)


@pytest.mark.parametrize("handle", [1, 2**63, 0])
def test_foreign_handles_are_refused_not_followed(driver: CDriver, handle: int) -> None:
    with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
        driver.release(handle)
    with pytest.raises(DriverError):
        driver.launch(handle, (1, 1, 1), (1, 1, 1), 0, [], 0)


def test_bad_calls_name_the_function_and_the_reason(driver: CDriver) -> None:
    with pytest.raises(DriverError, match=r"open failed with NOT_FOUND: device index"):
        driver.open(2)
    ctx = driver.open(0)
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        driver.mem_alloc(ctx, 2**63 + 1)
    with pytest.raises(DriverError, match='must be "path"'):
        driver.module_load(ctx, Image(b"abc", "ptx"))
    with pytest.raises(DriverError, match=r"cannot open shared object"):
        driver.module_load(ctx, Image(b"/nonexistent/kernel.so", "path"))
    assert driver.extension("graphs") is None
    driver.release(ctx)


def test_op_runs_on_the_c_kernel(example_device: Device) -> None:
    x, weight = torch.randn(5, 128), torch.rand(128)
    with deepinfer.fallback("error"):
        got = deepinfer.ops.norm.rms_norm(x, weight)
        strided = deepinfer.ops.norm.rms_norm(torch.randn(5, 256)[:, :128], weight)
    want = torch.nn.functional.rms_norm(x, (128,), weight, 1e-6)
    torch.testing.assert_close(got, want)
    assert strided.shape == (5, 128)
    assert deepinfer.ops.norm.rms_norm(x[:0], weight).shape == (0, 128)


def test_fallback_is_loud_counted_or_refused(example_device: Device, caplog: pytest.LogCaptureFixture) -> None:
    x, weight = torch.randn(2, 8).bfloat16(), torch.rand(8)
    deepinfer.ops.norm.rms_norm(x, weight)
    deepinfer.ops.norm.rms_norm(x, weight)
    assert example_device.statistics["fallback:norm.rms_norm"] == 2
    assert sum("takes float32" in record.message for record in caplog.records) == 1
    with deepinfer.fallback("error"), pytest.raises(UnsupportedError, match="takes float32"):
        deepinfer.ops.norm.rms_norm(x, weight)
    with pytest.raises(InvalidArgument, match="portable"):
        deepinfer.fallback("silent").__enter__()


def test_explain_and_pin(example_device: Device) -> None:
    x, weight = torch.randn(2, 8), torch.rand(8)
    text = str(deepinfer.explain(deepinfer.ops.norm.rms_norm, x, weight))
    assert "-> example_c_rms_norm_f32: supports the call" in text
    assert "portable (fallback)" in text
    with pin(example_device, "norm.rms_norm", "portable"):
        deepinfer.ops.norm.rms_norm(x, weight)
        assert example_device.statistics["fallback:norm.rms_norm"] == 1
    deepinfer.ops.norm.rms_norm(x, weight)
    assert example_device.statistics["fallback:norm.rms_norm"] == 1
    with pytest.raises(InvalidArgument, match="must be a kernel of"), pin(example_device, "norm.rms_norm", "nope"):
        pass


def test_streams_and_events_through_the_device(example_device: Device) -> None:
    stream, start, stop = example_device.new_stream(), example_device.new_event(), example_device.new_event()
    start.record(stream)
    example_device.current_stream().wait(start)
    stop.record(example_device.current_stream())
    example_device.synchronize()
    assert start.elapsed_ms(stop) >= 0.0
    del stream, start, stop
    gc.collect()
    example_device.close()
    example_device.close()


def test_launch_parameters_arrive_in_order(driver: CDriver, example_plugin: ModuleType) -> None:
    ctx = driver.open(0)
    module = driver.module_load(ctx, Image(str(example_plugin.BUILD / "libexample_c_kernels.so").encode(), "path"))
    with pytest.raises(DriverError, match="NOT_FOUND"):
        driver.function(module, "no_such_kernel")
    fn = driver.function(module, "rms_norm_f32")
    x, weight, y = torch.ones(1, 4), torch.ones(4), torch.zeros(1, 4)
    pointers = [Arg(t.data_ptr().to_bytes(8, "little")) for t in (x, weight, y)]
    numbers = [Arg(bytes(ctypes.c_int64(4))), Arg(bytes(ctypes.c_int64(4))), Arg(bytes(ctypes.c_float(0.0)))]
    driver.launch(fn, (1, 1, 1), (1, 1, 1), 0, [*pointers, *numbers], 0)
    assert y.tolist() == [[1.0] * 4]
    driver.release(ctx)


def test_libraries_that_are_not_drivers_are_refused(tmp_path: Path, example_plugin: ModuleType) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be loaded"):
        CDriver(tmp_path / "missing.so")
    with pytest.raises(BackendUnavailable, match="di_get_driver"):
        CDriver(example_plugin.BUILD / "libexample_c_kernels.so")


def _library(folder: Path, table: str) -> Path:
    """A driver library whose table has these fields and no more."""
    root = Path(__file__).resolve().parents[3]
    source, library = folder / "table.c", folder / "table.so"
    source.write_text(
        f'#include "deepinfer/driver.h"\nstatic const di_driver table = {{{table}}};\n'
        "const di_driver* di_get_driver(uint32_t major) { return major == 1 ? &table : 0; }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{root / 'include'}", str(source), "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize(("table", "says"), [
    ('sizeof(di_driver) - 8, 1, 0, "old"', "needs major 1 and at least"),
    ('sizeof(di_driver), 2, 0, "new"', "needs major 1 and at least"),
    ('sizeof(di_driver), 1, 0, "empty", 3', "the table has no last_error, probe, .*extension: every function"),
])
def test_tables_that_cannot_be_called_are_refused(table: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(AbiError, match=says):
        CDriver(_library(tmp_path, table))


def test_a_kind_that_no_header_names_is_refused(driver: CDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cabi_types.CDriverTable, "kind", 99)
    with pytest.raises(AbiError, match="kind is 99, must be one of 1 "):
        CDriver(driver.library)


@pytest.mark.parametrize("call", [
    lambda d, ctx: d.open(1 << 32), lambda d, ctx: d.open(-1), lambda d, ctx: d.mem_alloc(ctx, -1),
    lambda d, ctx: d.memset_async(ctx, 0, 256, 0, 0), lambda d, ctx: d.mem_alloc(ctx, 1 << 64),
    lambda d, ctx: d.launch(1, (1 << 32, 1, 1), (1, 1, 1), 0, [], 0),
    lambda d, ctx: d.launch(1, (1, 1, 1), (1, -1, 1), 0, [], 0), lambda d, ctx: d.extension("a\0b"),
])
def test_numbers_that_c_would_cut_are_refused(driver: CDriver, call: Callable[[CDriver, int], object]) -> None:
    """`open(1 << 32)` must not open device 0."""
    ctx = driver.open(0)
    with pytest.raises(InvalidArgument, match="must"):
        call(driver, ctx)
    driver.release(ctx)
