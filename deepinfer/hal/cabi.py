"""Adapter from a shared library that exports `di_get_driver` to the Python `Driver` protocol (ctypes, no compiler).

Invariants: a library of another ABI major version, or with a table shorter than the functions this adapter calls, is
refused with `AbiError` before anything of it runs; a failing status becomes `DriverError` with the library's own
message; a number that its C type cannot hold is refused, since ctypes would cut it; ctypes releases the interpreter
lock during every call.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepinfer.errors import AbiError, BackendUnavailable, DriverError, invalid
from deepinfer.hal.cabi_types import ABI_MAJOR, FUNCTIONS, CArg, CDeviceProps, CDim3, CDriverTable, CProbe
from deepinfer.hal.driver import Dim3
from deepinfer.hal.types import Arg, Cap, CopyKind, DeviceProps, DriverKind, Image, Probe, Status

_SCALAR, _BUFFER, _SPAN = 1, 2, 3
_UNSIGNED = (ct.c_uint8, ct.c_uint32, ct.c_uint64)
_LIMITS = {  # function -> one past the largest number of each parameter, None where it takes no number
    name: tuple(1 << 8 * ct.sizeof(kind) if kind in _UNSIGNED else None for kind in prototype._argtypes_)
    for name, prototype in FUNCTIONS
}


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _bytes(argument: str, text: str) -> bytes:
    if "\0" in text:
        raise invalid(argument, text, "must hold no NUL character: C would end the text there")
    return text.encode("utf-8", "surrogateescape")


def _kind(library: str, value: int) -> DriverKind:
    try:
        return DriverKind(value)
    except ValueError:
        known = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in DriverKind)
        raise AbiError(f"{library}: kind is {value}, must be one of {known}") from None


def _dim3(argument: str, sizes: Dim3) -> CDim3:
    if len(sizes) != 3 or not all(0 <= size < 1 << 32 for size in sizes):
        raise invalid(argument, sizes, "must be three numbers of 32 bits")
    return CDim3(*sizes)


class CDriver:
    """A `Driver` over one shared library. Thread-safe as far as the library keeps the contract of driver.h."""

    def __init__(self, library: Path | str) -> None:
        """Load `library`.

        Raises:
            BackendUnavailable: the file cannot be loaded (the loader's message is chained).
            AbiError: it does not speak this ABI.
        """
        self.library = str(library)
        try:
            self._lib = ct.CDLL(self.library)
            getter = self._lib.di_get_driver
        except (OSError, AttributeError) as error:
            raise BackendUnavailable(f"driver library {self.library} cannot be loaded", [str(error)]) from error
        getter.restype = ct.POINTER(CDriverTable)
        getter.argtypes = (ct.c_uint32,)
        table = getter(ABI_MAJOR)
        self._table = self._checked(table)
        self.name = _text(self._table.name)
        self.kind = _kind(self.library, self._table.kind)

    def _checked(self, table: Any) -> CDriverTable:
        if not table:
            raise AbiError(f"{self.library}: di_get_driver({ABI_MAJOR}) returned no table: another ABI version")
        found: CDriverTable = table.contents
        if found.abi_major != ABI_MAJOR or found.struct_size < ct.sizeof(CDriverTable):
            raise AbiError(
                f"{self.library}: ABI {found.abi_major}.{found.abi_minor} with a table of {found.struct_size} bytes; "
                f"needs major {ABI_MAJOR} and at least {ct.sizeof(CDriverTable)} bytes"
            )
        missing = [name for name, _ in FUNCTIONS if not getattr(found, name)]
        if missing:
            rule = "every function must be set; one without use returns DI_UNSUPPORTED"
            raise AbiError(f"{self.library}: the table has no {', '.join(missing)}: {rule}")
        return found

    def _call(self, function: str, *args: Any) -> None:
        for place, (value, limit) in enumerate(zip(args, _LIMITS[function], strict=False)):
            if limit is not None and not 0 <= value < limit:
                bits = limit.bit_length() - 1
                raise invalid(f"{self.name}: {function}: argument {place}", value, f"must be a number of {bits} bits")
        status = getattr(self._table, function)(*args)
        if status != Status.OK:
            message = _text(self._table.last_error())
            name = Status(status).name if status in set(Status) else f"status {status}"
            raise DriverError(f"{self.name}: {function}", name, message)

    def _handle(self, function: str, *args: Any) -> int:
        out = ct.c_uint64()
        self._call(function, *args, ct.byref(out))
        return out.value

    def probe(self) -> Probe:
        raw = CProbe(struct_size=ct.sizeof(CProbe))
        status = self._table.probe(ct.byref(raw))
        if status != Status.OK:
            return Probe(False, reasons=(f"probe failed: {_text(self._table.last_error())}",))
        reasons = (_text(raw.reason),) if raw.reason else ()
        return Probe(bool(raw.available), raw.device_count, reasons, version=_text(raw.version))

    def device_props(self, index: int) -> DeviceProps:
        raw = CDeviceProps(struct_size=ct.sizeof(CDeviceProps))
        self._call("device_props", index, ct.byref(raw))
        return DeviceProps(
            name=_text(raw.name), arch=_text(raw.arch), kind=_kind(self.library, raw.kind),
            compute_units=raw.compute_units, clock_khz=raw.clock_khz, memory_bytes=raw.memory_bytes,
            l2_bytes=raw.l2_bytes, scratch_bytes=raw.scratch_bytes, memory_bandwidth=raw.memory_bandwidth,
            caps=frozenset(cap for cap in Cap if raw.caps >> cap.value & 1),
        )

    def open(self, index: int) -> int:
        return self._handle("open", index)

    def release(self, handle: int) -> None:
        self._call("release", handle)

    def mem_info(self, ctx: int) -> tuple[int, int]:
        free, total = ct.c_uint64(), ct.c_uint64()
        self._call("mem_info", ctx, ct.byref(free), ct.byref(total))
        return free.value, total.value

    def mem_alloc(self, ctx: int, nbytes: int, align: int = 256) -> int:
        return self._handle("mem_alloc", ctx, nbytes, align)

    def mem_free(self, ctx: int, address: int) -> None:
        self._call("mem_free", ctx, address)

    def memcpy_async(self, ctx: int, dst: int, src: int, nbytes: int, kind: CopyKind, stream: int) -> None:
        self._call("memcpy_async", ctx, dst, src, nbytes, int(kind), stream)

    def memset_async(self, ctx: int, dst: int, value: int, nbytes: int, stream: int) -> None:
        self._call("memset_async", ctx, dst, value, nbytes, stream)

    def stream_create(self, ctx: int) -> int:
        return self._handle("stream_create", ctx)

    def stream_synchronize(self, ctx: int, stream: int) -> None:
        self._call("stream_synchronize", ctx, stream)

    def event_create(self, ctx: int) -> int:
        return self._handle("event_create", ctx)

    def event_record(self, ctx: int, event: int, stream: int) -> None:
        self._call("event_record", ctx, event, stream)

    def event_wait(self, ctx: int, event: int, stream: int) -> None:
        self._call("event_wait", ctx, event, stream)

    def event_synchronize(self, ctx: int, event: int) -> None:
        self._call("event_synchronize", ctx, event)

    def event_elapsed_ms(self, ctx: int, start: int, stop: int) -> float:
        out = ct.c_double()
        self._call("event_elapsed_ms", ctx, start, stop, ct.byref(out))
        return out.value

    def module_load(self, ctx: int, image: Image) -> int:
        buffer = ct.create_string_buffer(image.data, len(image.data))
        return self._handle("module_load", ctx, ct.cast(buffer, ct.c_void_p), len(image.data), _bytes("fmt", image.fmt))

    def function(self, module: int, name: str) -> int:
        return self._handle("function", module, _bytes("name", name))

    def launch(
        self, fn: int, grid: Dim3, block: Dim3, smem_bytes: int, args: Sequence[Arg], stream: int
    ) -> None:
        raw, _keep = pack_args(args)
        self._call("launch", fn, _dim3("grid", grid), _dim3("block", block), smem_bytes, raw, len(args), stream)

    def extension(self, name: str) -> int | None:
        """Address of the extension's table, or None."""
        out = ct.c_void_p()
        status = self._table.extension(_bytes("name", name), ct.byref(out))
        return out.value if status == Status.OK else None


def pack_args(args: Sequence[Arg]) -> tuple[Any, list[Any]]:
    """C array of `di_arg` for `args`, and the buffers that must outlive the launch call."""
    raw = (CArg * max(len(args), 1))()
    keep: list[Any] = []
    for slot, arg in zip(raw, args, strict=False):
        buffer = ct.create_string_buffer(arg.value, max(len(arg.value), 1))
        keep.append(buffer)
        slot.kind = _SCALAR if arg.span is None else (_BUFFER if arg.value else _SPAN)
        slot.size, slot.data = len(arg.value), ct.cast(buffer, ct.c_void_p)
        if arg.span is not None:
            slot.base, slot.span, slot.writable = arg.span.base, arg.span.nbytes, int(arg.span.writable)
    return raw, keep
