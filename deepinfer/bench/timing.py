"""How long a call takes: device events where the device has a timer, else the wall clock; two states.

sust: preheated, calls back to back in slots, the median of slots. The card reaches the clocks it can hold.
cool: a rest, then the caches are flushed before every call, one event pair per call. Burst clocks, cold caches; the
write-back of the flush adds microseconds to calls that are bound by memory, so trust sust for those.
Wall-clock devices (hosts) are always measured call by call after a warm-up.

Invariants: nothing is allocated or compiled inside a timed region; calls rotate over the given input sets, so a
working set that would fit the cache is not measured from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from deepinfer.hal.device import Device
from deepinfer.hal.types import Cap, DriverKind

PREHEAT_S, SLOT_S, ROUNDS = 0.25, 0.025, 7
REST_S, COOL_CALLS, FLUSH_BYTES = 0.4, 15, 4 << 30
WALL_S, WALL_MIN, WALL_MAX, WALL_WARM_S = 0.5, 5, 300, 0.05

Call = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """Times of one case in microseconds, sorted, and the clock they were taken with."""

    times_us: tuple[float, ...]
    clock: str

    def quantile(self, share: float) -> float:
        """Linear interpolation between order statistics."""
        place = share * (len(self.times_us) - 1)
        low = int(place)
        high = min(low + 1, len(self.times_us) - 1)
        return self.times_us[low] + (self.times_us[high] - self.times_us[low]) * (place - low)


def clock_of(device: Device) -> str:
    """device = its own timer, model = a simulator's estimate, wall = the host's clock."""
    if device.props.kind is DriverKind.SIMULATOR:
        return "model"
    return "device" if device.supports(Cap.DEVICE_TIMER) else "wall"


def measure(device: Device, calls: Sequence[Call], state: str) -> Sample:
    """Time `calls` (one per input set, doing the same work) on the current stream."""
    for call in calls:
        call()
    device.synchronize()
    clock = clock_of(device)
    if clock == "wall":
        times = _wall(device, calls)
    elif clock == "model":
        times = [_events(device, calls[:1]) for _ in range(3)]
    else:
        times = _sustained(device, calls) if state == "sust" else _cool(device, calls)
    return Sample(tuple(sorted(times)), clock)


def _wall(device: Device, calls: Sequence[Call]) -> list[float]:
    _busy(device, calls, WALL_WARM_S)
    times: list[float] = []
    end = time.perf_counter() + WALL_S
    while len(times) < WALL_MIN or (time.perf_counter() < end and len(times) < WALL_MAX):
        call = calls[len(times) % len(calls)]
        start = time.perf_counter()
        call()
        device.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _busy(device: Device, calls: Sequence[Call], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while True:
        for call in calls:
            call()
        device.synchronize()
        if time.perf_counter() >= end:
            return


def _events(device: Device, calls: Sequence[Call]) -> float:
    """Microseconds per call of one back-to-back sequence."""
    stream, start, stop = device.current_stream(), device.new_event(), device.new_event()
    start.record(stream)
    for call in calls:
        call()
    stop.record(stream)
    stop.synchronize()
    return start.elapsed_ms(stop) * 1e3 / len(calls)


def _sustained(device: Device, calls: Sequence[Call]) -> list[float]:
    _busy(device, calls, PREHEAT_S)
    once = max(_events(device, calls), 0.1)
    count = max(len(calls), min(int(SLOT_S * 1e6 / once), 2000))
    slot = [calls[i % len(calls)] for i in range(count)]
    return [_events(device, slot) for _ in range(ROUNDS)]


def _cool(device: Device, calls: Sequence[Call]) -> list[float]:
    size = min(FLUSH_BYTES, device.memory_info()[0] // 4 or 1 << 28)
    flush = device.empty((size,), torch.uint8)
    device.synchronize()
    time.sleep(REST_S)
    times: list[float] = []
    for number in range(COOL_CALLS):
        flush.fill_(number & 0xFF)
        times.append(_events(device, calls[number % len(calls) :][:1]))
    return times
