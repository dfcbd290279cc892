"""The simulator as a `Driver`: the C table of its shared library plus its extension (options, counters, groups).

Options belong to the calling thread; `options(...)` sets some for a block. Launches finish before they return.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from deepinfer.errors import DriverError
from deepinfer.hal.cabi import CDriver, pack_args
from deepinfer.hal.cabi_types import CArg
from deepinfer.hal.types import Arg, Probe, Status
from deepinfer_ascend950.toolchain.simlib import find_library

EXTENSION = "ascend950.sim.v1"


class _Launch(ct.Structure):
    _fields_ = (("fn", ct.c_uint64), ("grid", ct.c_uint32), ("arg_count", ct.c_uint32), ("args", ct.POINTER(CArg)))


class _Counters(ct.Structure):
    _fields_ = tuple(
        (name, ct.c_uint64)
        for name in ("macs", "vf", "mte2_bytes", "mte3_bytes", "mte1_bytes", "fix_bytes", "instructions")
    )


class _Extension(ct.Structure):
    _fields_ = (
        ("struct_size", ct.c_uint32),
        ("reserved", ct.c_uint32),
        ("set_option", ct.CFUNCTYPE(ct.c_int, ct.c_char_p, ct.c_double)),
        ("get_option", ct.CFUNCTYPE(ct.c_int, ct.c_char_p, ct.POINTER(ct.c_double))),
        ("last_counters", ct.CFUNCTYPE(ct.c_int, ct.POINTER(_Counters))),
        ("last_warnings", ct.CFUNCTYPE(ct.c_char_p)),
        ("launch_group", ct.CFUNCTYPE(ct.c_int, ct.POINTER(_Launch), ct.c_uint32)),
        ("last_timeline", ct.CFUNCTYPE(ct.c_int, ct.POINTER(ct.c_double), ct.POINTER(ct.c_double))),
    )


@dataclass(frozen=True)
class Counters:
    """What the last launch of this thread did; bytes per data path."""

    macs: int
    vf: int
    mte2_bytes: int
    mte3_bytes: int
    mte1_bytes: int
    fix_bytes: int
    instructions: int


CORES, PIPES = ("AIC", "AIV0", "AIV1"), ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")


@dataclass(frozen=True)
class Timeline:
    """Modelled cycles of the last launch of this thread (sim/src/cost.h): of its longest AI core, and how long each
    (core, pipe) was busy, summed over the blocks of the launch."""

    cycles: float
    busy: dict[tuple[str, str], float]


@dataclass(frozen=True)
class GroupLaunch:
    """One member of a group: function handle, number of blocks, arguments."""

    fn: int
    grid: int
    args: Sequence[Arg]


class SimDriver(CDriver):
    """Driver "ascend950/sim"."""

    def __init__(self) -> None:
        super().__init__(find_library())
        address = self.extension(EXTENSION)
        if not address:
            raise DriverError(f"{self.name}: extension", "NOT_FOUND", f"the library lacks {EXTENSION}")
        self._sim = ct.cast(address, ct.POINTER(_Extension)).contents

    def _checked_ext(self, what: str, status: int) -> None:
        if status != Status.OK:
            raise DriverError(f"{self.name}: {what}", Status(status).name, self._table.last_error().decode())

    def set_option(self, name: str, value: float) -> None:
        """Set an option of this thread's launches (names in asc_sim/extension.h)."""
        self._checked_ext("set_option", self._sim.set_option(name.encode(), value))

    def get_option(self, name: str) -> float:
        out = ct.c_double()
        self._checked_ext("get_option", self._sim.get_option(name.encode(), ct.byref(out)))
        return out.value

    @contextlib.contextmanager
    def options(self, **values: float) -> Iterator[None]:
        """Options for a block of this thread, restored afterwards."""
        saved = {name: self.get_option(name) for name in values}
        try:
            for name, value in values.items():
                self.set_option(name, value)
            yield
        finally:
            for name, value in saved.items():
                self.set_option(name, value)

    def counters(self) -> Counters:
        """Counters of this thread's last launch."""
        raw = _Counters()
        self._checked_ext("last_counters", self._sim.last_counters(ct.byref(raw)))
        return Counters(*(getattr(raw, field[0]) for field in _Counters._fields_))

    def timeline(self) -> Timeline:
        """Modelled timeline of this thread's last launch."""
        cycles, busy = ct.c_double(), (ct.c_double * (len(CORES) * len(PIPES)))()
        self._checked_ext("last_timeline", self._sim.last_timeline(ct.byref(cycles), busy))
        names = [(core, pipe) for core in CORES for pipe in PIPES]
        return Timeline(cycles.value, dict(zip(names, busy, strict=True)))

    def warnings(self) -> list[str]:
        """Remarks on this thread's last launch, such as cross-core flags left with credits."""
        text: bytes = self._sim.last_warnings() or b""
        return text.decode().splitlines()

    def launch_group(self, launches: Sequence[GroupLaunch]) -> None:
        """Run launches on several devices together, under one scheduler; race checks span them."""
        packed = [pack_args(launch.args) for launch in launches]
        table = (_Launch * max(len(launches), 1))()
        for i, launch in enumerate(launches):
            args = ct.cast(packed[i][0], ct.POINTER(CArg))
            table[i] = _Launch(launch.fn, launch.grid, len(launch.args), args)
        self._checked_ext("launch_group", self._sim.launch_group(table, len(launches)))


@lru_cache(maxsize=1)
def driver() -> SimDriver:
    """The process's one simulator."""
    return SimDriver()


def probe() -> Probe:
    """Whether the simulator can run here; compiles nothing."""
    return Probe(True, device_count=16, reasons=("simulated devices; kernels are compiled with g++ on first use",))
