"""Plain values that cross the hardware abstraction layer.

Invariants: everything here is immutable and independent of any vendor; `Cap` lists behaviours, never product names,
and its order is the bit order of `di_cap` in include/deepinfer/driver.h.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class DriverKind(enum.Enum):
    """What executes a driver's work; the values are `di_kind` in driver.h."""

    HARDWARE = 1
    SIMULATOR = 2
    HOST = 3


class Cap(enum.Enum):
    """A behaviour a device may offer; the values are bit numbers (`di_cap`)."""

    BF16 = 0
    FP16 = 1
    FP8_E4M3 = 2
    MXFP8 = 3
    MXFP4 = 4
    GRAPHS = 5
    PEER_MEMORY = 6
    TENSOR_MAPS = 7
    CLUSTERS = 8
    ASYNC_STREAMS = 9
    DEVICE_TIMER = 10
    RACE_CHECKER = 11


class Status(enum.IntEnum):
    """Status codes of the driver ABI (`di_status`)."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    NOT_FOUND = 3
    UNSUPPORTED = 4
    UNAVAILABLE = 5
    LAUNCH_FAILED = 6
    TIMEOUT = 7
    INTERNAL = 8


class CopyKind(enum.IntEnum):
    """Direction of a driver copy (`di_copy`)."""

    H2D = 1
    D2H = 2
    D2D = 3


@dataclass(frozen=True)
class DeviceProps:
    """What a kernel may ask about a device before it decides; sizes in bytes, clock in kHz, 0 = unknown."""

    name: str
    arch: str
    kind: DriverKind
    compute_units: int = 0
    clock_khz: int = 0
    memory_bytes: int = 0
    l2_bytes: int = 0
    scratch_bytes: int = 0
    memory_bandwidth: int = 0
    caps: frozenset[Cap] = frozenset()
    extra: Mapping[str, int | str] = field(default_factory=dict, hash=False, compare=False)


@dataclass(frozen=True)
class Probe:
    """Answer of `probe()`: usable or not and why. `fix` is a command line that would make it usable."""

    available: bool
    device_count: int = 0
    reasons: tuple[str, ...] = ()
    fix: str | None = None
    version: str = ""


@dataclass(frozen=True)
class Image:
    """A compiled module: `fmt` is "ptx", "cubin", "elf" or "path"; `name` is used in messages only."""

    data: bytes
    fmt: str
    name: str = "module"


@dataclass(frozen=True)
class Span:
    """The bytes [base, base + nbytes) that a launch may touch; a simulator enforces them."""

    base: int
    nbytes: int
    writable: bool = True


@dataclass(frozen=True)
class Arg:
    """One kernel parameter.

    `value` is the parameter's little-endian bytes. With `span` the parameter is a device address inside that span;
    with empty `value` the span is announced without a parameter (memory reached through a tensor map, say).
    """

    value: bytes = b""
    span: Span | None = None

    @staticmethod
    def pointer(address: int, span: Span) -> Arg:
        """A device address parameter that may touch `span`."""
        return Arg(address.to_bytes(8, "little"), span)


@dataclass(frozen=True)
class Support:
    """Answer of `Kernel.supports`: `ok`, or the reasons why not. Truthy when supported."""

    reasons: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no reason against."""
        return not self.reasons

    def __bool__(self) -> bool:
        return not self.reasons

    @staticmethod
    def no(*reasons: str) -> Support:
        """Not supported, for these reasons; supported when there are none."""
        return Support(tuple(reasons))


YES = Support()
