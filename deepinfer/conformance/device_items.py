"""Level L1: memory, streams, events and error text of an opened device, through `Device` and, where there is one,
through its raw `Driver`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import torch

from deepinfer.conformance import driver_checks
from deepinfer.conformance.compare import same_bits
from deepinfer.conformance.item import Breach, Item, Target, require, require_none
from deepinfer.errors import BackendUnavailable, DeepInferError, UnsupportedError
from deepinfer.hal import device as open_device
from deepinfer.hal.types import Cap, DeviceProps, Image

DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8, torch.int32, torch.int64,
    torch.bool,
)
SHAPES: tuple[tuple[int, ...], ...] = ((0,), (1,), (3, 5), (0, 7), (257, 129), (1 << 18,))
ROUNDS = 64
LEAK_BYTES = 1 << 20


def items(target: Target) -> Iterator[Item]:
    """All L1 items for `target`."""
    checks = [
        ("properties", _properties), ("spec opens the same device", _spec_round_trip), ("allocation", _allocation),
        ("copies of a strided tensor", _strided_copy), ("copies are copies", _copies_do_not_alias),
        ("memory info", _memory_info), ("no leak", _no_leak), ("streams", _streams), ("stream order", _stream_order),
        ("events", _events), ("error text of events", _event_errors), ("threads", _threads),
        ("bad index", _bad_index), ("bad image", _bad_image),
    ]
    if not target.device.supports(Cap.GRAPHS):
        checks.append(("graph is refused by name", _no_graph))
    for name, check in checks:
        yield Item("L1", "device", "", name, check)
    for dtype in DTYPES:
        yield Item("L1", "device", str(dtype).removeprefix("torch."), "round trip", _RoundTrip(dtype))
    if hasattr(target.device, "raw_driver"):
        yield from driver_checks.items(target)


def _properties(target: Target) -> None:
    props = target.device.props
    require(isinstance(props, DeviceProps) and bool(props.name) and bool(props.arch), f"incomplete properties: {props}")
    numbers = (props.compute_units, props.clock_khz, props.memory_bytes, props.l2_bytes, props.scratch_bytes)
    require(min(numbers) >= 0, f"negative number in {props}")
    require(all(isinstance(cap, Cap) for cap in props.caps), f"caps must hold Cap values: {props.caps}")


def _spec_round_trip(target: Target) -> None:
    found = open_device(target.device.spec)
    require(found.spec == target.device.spec, f"{target.device.spec!r} opens {found.spec!r}")


def _allocation(target: Target) -> None:
    device = target.device
    held = [device.empty((257,), torch.int32).fill_(number) for number in range(8)]
    mixed = [number for number, data in enumerate(held) if not bool((device.to_host(data) == number).all())]
    require(not mixed, f"tensors {mixed} of 8 held at once lie in the memory of others")
    for dtype in DTYPES:
        for shape in SHAPES:
            tensor = device.empty(shape, dtype)
            right = tuple(tensor.shape) == shape and tensor.dtype == dtype
            require(right, f"empty({shape}, {dtype}) gave {tensor.dtype} {list(tensor.shape)}")
            require(tensor.device.type == device.torch_device.type, f"empty gave a tensor on {tensor.device}")
            require(tensor.data_ptr() % 16 == 0, f"empty({shape}, {dtype}) is not 16-byte aligned")


class _RoundTrip:
    """Bytes survive host -> device -> host for every shape."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, target: Target) -> None:
        generator = torch.Generator().manual_seed(5)
        for shape in SHAPES:
            host = (torch.randn(shape, generator=generator) * 50).to(self.dtype)
            back = target.device.to_host(target.device.to_device(host))
            require(back.device.type == "cpu", f"to_host gave a tensor on {back.device}")
            require_none(same_bits(f"{self.dtype} {list(shape)}", back, host))


def _strided_copy(target: Target) -> None:
    host = torch.arange(24 * 10, dtype=torch.int32).view(24, 10)
    for view in (host[::2], host[:, ::3], host.t(), host[3:7, 1:9]):
        back = target.device.to_host(target.device.to_device(view))
        require_none(same_bits(f"view {list(view.shape)} {view.stride()}", back, view))


def _copies_do_not_alias(target: Target) -> None:
    device = target.device
    first = device.empty((64,), torch.int32).fill_(1)
    second = first.clone()
    second.fill_(2)
    require(bool((device.to_host(first) == 1).all()), "writing a clone changed the original")


def _memory_info(target: Target) -> None:
    free, total = target.device.memory_info()
    require(0 <= free <= total, f"memory_info gave free {free}, total {total}")


def _no_leak(target: Target) -> None:
    """Creating and dropping streams, events and tensors gives their memory back."""
    device = target.device

    def once() -> None:
        stream, event = device.new_stream(), device.new_event()
        event.record(stream)
        stream.synchronize()
        device.empty((1 << 16,), torch.uint8).fill_(0)

    counter = getattr(device, "allocated_bytes", None)
    if counter is None:
        for _ in range(ROUNDS):
            once()
        return
    once()
    gc.collect()
    before = counter()
    for _ in range(ROUNDS):
        once()
    gc.collect()
    device.synchronize()
    require(counter() <= before + LEAK_BYTES, f"allocated bytes grew from {before} to {counter()} in {ROUNDS} rounds")


def _streams(target: Target) -> None:
    device = target.device
    default = device.current_stream()
    side = device.new_stream()
    require(side is not default, "new_stream returned the current stream")
    other = device.new_stream()
    require(side is not other, "new_stream returned one stream twice")
    if device.supports(Cap.ASYNC_STREAMS):
        handles = [stream.handle for stream in (default, side, other)]
        require(len(set(handles)) == 3 or not any(handles), f"streams of one device share handles: {handles}")
    side.synchronize()
    device.set_stream(side)
    try:
        if device.supports(Cap.ASYNC_STREAMS):
            now = device.current_stream()
            require(now is side or now.handle == side.handle, "set_stream did not change current_stream")
    finally:
        device.set_stream(None)
    require(device.current_stream().handle == default.handle, "set_stream(None) did not restore the default stream")


def _stream_order(target: Target) -> None:
    """Work behind an event of another stream sees what that stream did before it."""
    device = target.device
    data = device.empty((1 << 16,), torch.int32)
    producer, consumer, event = device.new_stream(), device.new_stream(), device.new_event()
    for value in range(8):
        device.set_stream(producer)
        try:
            data.fill_(value)
            event.record(producer)
        finally:
            device.set_stream(None)
        consumer.wait(event)
        consumer.synchronize()
        require(bool((device.to_host(data) == value).all()), f"round {value}: the consumer read older data")


def _events(target: Target) -> None:
    device = target.device
    stream = device.current_stream()
    start, stop = device.new_event(), device.new_event()
    start.record(stream)
    device.empty((1 << 18,), torch.float32).fill_(1.0)
    stop.record(stream)
    stop.synchronize()
    forward = start.elapsed_ms(stop)
    require(0.0 <= forward < 60_000.0, f"elapsed_ms gave {forward}")
    start.record(stream)
    start.synchronize()
    again = stop.elapsed_ms(start)
    require(again >= 0.0, f"an event recorded later lies {again} ms before the earlier one")


def _event_errors(target: Target) -> None:
    never, other = target.device.new_event(), target.device.new_event()
    try:
        value = never.elapsed_ms(other)
    except DeepInferError as error:
        require(len(str(error)) > 10, f"the message says nothing: {error}")
    else:
        raise Breach(f"elapsed_ms of events that were never recorded gave {value}, must raise")


def _threads(target: Target) -> None:
    """Four threads allocate, fill and read at once, each seeing only its own data."""
    device, problems = target.device, list[str]()

    def work(number: int) -> None:
        for _ in range(8):
            data = device.empty((4096,), torch.int32).fill_(number)
            if not bool((device.to_host(data) == number).all()):
                problems.append(f"thread {number} read another thread's data")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require_none(problems)


def _bad_index(target: Target) -> None:
    head = target.device.spec.rpartition(":")[0]
    try:
        open_device(f"{head}:9999")
    except BackendUnavailable as error:
        require("9999" in str(error), f"the message does not name the index: {error}")
    else:
        raise Breach("device 9999 could be opened")


def _bad_image(target: Target) -> None:
    try:
        target.device.load(Image(b"not a module", "no-such-format", "conformance"))
    except DeepInferError as error:
        named = "no-such-format" in str(error) or "conformance" in str(error)
        require(named, f"names neither image nor format: {error}")
    else:
        raise Breach("a module of an unknown format was loaded")


def _no_graph(target: Target) -> None:
    try:
        target.device.graph()
    except UnsupportedError as error:
        require("GRAPHS" in str(error), f"the message does not name the capability: {error}")
    else:
        raise Breach("graph() works but the device does not claim GRAPHS")
