"""Level L1 for devices reached through the narrow waist: the raw `Driver` of driver.h, its statuses and its texts."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

from deepinfer.conformance.item import Breach, Item, Target, require
from deepinfer.errors import DeepInferError
from deepinfer.hal.driver import Driver
from deepinfer.hal.types import CopyKind, Image, Probe

NBYTES = 4099  # odd on purpose
BOGUS = 0x7FFF_FFFF_0000


def items(target: Target) -> Iterator[Item]:
    """All raw driver items; the device carries `raw_driver` and `ctx`."""
    for name, check in (
        ("protocol", _protocol), ("probe", _probe), ("copies", _copies), ("memset", _memset), ("alignment", _alignment),
        ("zero bytes", _zero_bytes), ("release twice", _release_twice), ("bad handles", _bad_handles),
        ("events across streams", _events), ("bad image", _bad_image), ("unknown extension", _unknown_extension),
    ):
        yield Item("L1", "driver", "", name, check)


def _driver(target: Target) -> tuple[Driver, int]:
    return target.device.raw_driver, target.device.ctx  # type: ignore[attr-defined]


def _protocol(target: Target) -> None:
    driver, _ = _driver(target)
    require(isinstance(driver, Driver), f"{type(driver).__name__} lacks functions of the Driver protocol")


def _probe(target: Target) -> None:
    driver, _ = _driver(target)
    start = time.perf_counter()
    probe = driver.probe()
    seconds = time.perf_counter() - start
    require(isinstance(probe, Probe) and probe.available, f"probe of an opened driver says {probe}")
    require(seconds < 0.05, f"probe took {seconds * 1e3:.1f} ms, must be < 50 ms")


def _read(driver: Driver, ctx: int, address: int, nbytes: int) -> bytes:
    host = ctypes.create_string_buffer(nbytes)
    driver.memcpy_async(ctx, ctypes.addressof(host), address, nbytes, CopyKind.D2H, 0)
    driver.stream_synchronize(ctx, 0)
    return host.raw


def _copies(target: Target) -> None:
    driver, ctx = _driver(target)
    data = bytes((7 * i + 3) % 256 for i in range(NBYTES))
    host = ctypes.create_string_buffer(data, NBYTES)
    first, second = driver.mem_alloc(ctx, NBYTES), driver.mem_alloc(ctx, NBYTES)
    try:
        driver.memcpy_async(ctx, first, ctypes.addressof(host), NBYTES, CopyKind.H2D, 0)
        driver.memcpy_async(ctx, second, first, NBYTES, CopyKind.D2D, 0)
        require(_read(driver, ctx, second, NBYTES) == data, "bytes changed on the way host -> device -> device -> host")
    finally:
        driver.mem_free(ctx, first)
        driver.mem_free(ctx, second)


def _memset(target: Target) -> None:
    driver, ctx = _driver(target)
    address = driver.mem_alloc(ctx, NBYTES)
    try:
        driver.memset_async(ctx, address, 0x11, NBYTES, 0)
        driver.memset_async(ctx, address + 1, 0xEE, NBYTES - 2, 0)
        wanted = b"\x11" + b"\xee" * (NBYTES - 2) + b"\x11"
        require(_read(driver, ctx, address, NBYTES) == wanted, "memset wrote other bytes than asked")
    finally:
        driver.mem_free(ctx, address)


def _alignment(target: Target) -> None:
    driver, ctx = _driver(target)
    for align in (1, 16, 256, 1024):
        address = driver.mem_alloc(ctx, 100, align)
        driver.mem_free(ctx, address)
        require(address % align == 0, f"mem_alloc(100, align={align}) gave address {address:#x}")


def _zero_bytes(target: Target) -> None:
    driver, ctx = _driver(target)
    address = driver.mem_alloc(ctx, 16)
    try:
        driver.memset_async(ctx, address, 1, 0, 0)
        driver.memcpy_async(ctx, address, address, 0, CopyKind.D2D, 0)
        driver.stream_synchronize(ctx, 0)
    finally:
        driver.mem_free(ctx, address)


def _refused(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except DeepInferError as error:
        require(len(str(error)) > 15, f"{what}: the message says nothing: {error}")
    else:
        raise Breach(f"{what}: succeeded, must be an error")


def _release_twice(target: Target) -> None:
    driver, ctx = _driver(target)
    stream = driver.stream_create(ctx)
    driver.release(stream)
    _refused("releasing a stream twice", lambda: driver.release(stream))


def _bad_handles(target: Target) -> None:
    driver, ctx = _driver(target)
    _refused("stream_synchronize of a handle that never was", lambda: driver.stream_synchronize(ctx, BOGUS))
    _refused("mem_info of a context that never was", lambda: driver.mem_info(BOGUS))
    _refused("open of device 9999", lambda: driver.open(9999))
    _refused("mem_free of an address that was never allocated", lambda: driver.mem_free(ctx, BOGUS))


def _events(target: Target) -> None:
    driver, ctx = _driver(target)
    first, second, event = driver.stream_create(ctx), driver.stream_create(ctx), driver.event_create(ctx)
    address = driver.mem_alloc(ctx, NBYTES)
    try:
        for value in range(4):
            driver.memset_async(ctx, address, value, NBYTES, first)
            driver.event_record(ctx, event, first)
            driver.event_wait(ctx, event, second)
            host = ctypes.create_string_buffer(NBYTES)
            driver.memcpy_async(ctx, ctypes.addressof(host), address, NBYTES, CopyKind.D2H, second)
            driver.stream_synchronize(ctx, second)
            require(host.raw == bytes([value]) * NBYTES, f"round {value}: event_wait did not order the copy")
    finally:
        driver.mem_free(ctx, address)
        for handle in (first, second, event):
            driver.release(handle)


def _bad_image(target: Target) -> None:
    driver, ctx = _driver(target)
    _refused("module_load of garbage", lambda: driver.module_load(ctx, Image(b"garbage", "no-such-format", "junk")))


def _unknown_extension(target: Target) -> None:
    driver, _ = _driver(target)
    found = driver.extension("no-such-extension")
    require(found is None, f"extension('no-such-extension') gave {found!r}, must be None")
