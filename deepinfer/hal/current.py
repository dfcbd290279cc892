"""Which device ops run on: the choice by name, by environment or automatic, process-wide or per context.

Order: `use_backend` (this context) > `set_backend` (process) > DEEPINFER_BACKEND > automatic. Automatic takes the
highest priority backend that is available on hardware, else cpu, and logs once what it took and why the others were
passed over. A simulator is chosen only by name. Devices are opened once and shared.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer import config
from deepinfer.errors import BackendUnavailable, DeepInferError, invalid
from deepinfer.hal import discovery, plugin
from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device
from deepinfer.hal.scoped import Scoped
from deepinfer.hal.types import DriverKind, Probe

_context: Scoped[Device | None] = Scoped("deepinfer_device", None)
_lock = discovery.lock  # one lock: opening a device loads backends, and loading a backend may open devices
_INDEX = re.compile(r"[0-9]{1,9}")
_opened: dict[tuple[str, str, int, tuple[str, ...]], tuple[Backend, Device]] = {}


class _Process:
    """Process-wide choice; one instance."""

    device: Device | None = None
    automatic: Device | None = None


@dataclass(frozen=True)
class DeviceSpec:
    """A parsed `name[/driver][:index]`."""

    backend: str
    driver: str
    index: int
    arch: tuple[str, ...]


def parse(text: str, argument: str = "backend") -> DeviceSpec:
    """Parse `name[/driver][:index]`, e.g. "cpu", "cuda:1", "cuda_sm10/sim", "ascend/sim:0"; errors name `argument`."""
    if not isinstance(text, str) or not text.strip():
        raise invalid(argument, text, "must be text of the form name[/driver][:index]", nearest="'cpu'")
    head, colon, tail = text.strip().partition(":")
    name, slash, driver = (part.strip().lower() for part in head.partition("/"))
    if colon and not _INDEX.fullmatch(tail):
        rule = f"the device index {tail[:40]!r} must be a non-negative integer"
        raise invalid(argument, text[:200], rule, nearest=f"{(head or 'cpu')[:100] + ':0'!r}")
    if not name or (slash and not driver):
        rule = f"the {'driver' if name else 'backend'} name is empty, must be of the form name[/driver][:index]"
        raise invalid(argument, text[:200], rule, nearest=repr(name or "cpu"))
    backend, arch = discovery.canonical(name)
    return DeviceSpec(backend, driver, int(tail) if colon else 0, arch)


def device(spec: str | None = None) -> Device:
    """The device named by `spec`, opened on first use; without `spec` the current device. Chooses nothing.

    Args:
        spec: `name[/driver][:index]`, or None.

    Returns:
        The one shared `Device` of that specification.

    Raises:
        BackendUnavailable: the backend is missing, failed to load, or has no such device; says why and the fix.
        InvalidArgument: `spec` is malformed.

    >>> device("cpu").spec
    'cpu:0'
    """
    return current_device() if spec is None else _shared(parse(spec))


def _shared(parsed: DeviceSpec) -> Device:
    key = (parsed.backend, parsed.driver, parsed.index, parsed.arch)
    with _lock:
        backend = discovery.load(parsed.backend)
        found = _opened.get(key)
        # a backend registered again under this name opens its own device; a closed device is opened anew
        if found is None or found[0] is not backend or found[1].closed:
            found = _opened[key] = (backend, _open(parsed))
        return found[1]


def _open(parsed: DeviceSpec) -> Device:
    backend = discovery.load(parsed.backend)
    _require_driver(backend, parsed.driver)
    probe = plugin.probe(backend, parsed.driver)
    label = f"{parsed.backend}/{parsed.driver}" if parsed.driver else parsed.backend
    if not probe.available:
        raise BackendUnavailable(f"backend {label!r} cannot be used", probe.reasons, probe.fix)
    if not 0 <= parsed.index < probe.device_count:
        raise BackendUnavailable(
            f"backend {label!r} has no device {parsed.index}", [f"valid indices are 0 to {probe.device_count - 1}"]
        )
    reasons: list[str] = []
    fix: str | None = None
    for arch in parsed.arch or (None,):
        try:
            return plugin.open_device(backend, parsed.index, parsed.driver, arch)
        except BackendUnavailable as error:
            reasons += error.reasons or [str(error)]
            fix = fix or error.fix
    raise BackendUnavailable(f"backend {label!r} has no suitable device", reasons, fix)


def _require_driver(backend: Backend, driver: str) -> None:
    if driver and driver not in backend.drivers:
        choices = ", ".join(name for name in backend.drivers if name) or "none"
        reason = f"its named drivers are: {choices}"
        raise BackendUnavailable(f"backend {backend.name!r} has no driver {driver!r}", [reason])


def set_backend(spec: str) -> Device:
    """Choose the device that ops of the whole process run on. Nothing changes when it cannot be used.

    Args:
        spec: `name[/driver][:index]`: "cpu", "cuda:1", "cuda_sm10/sim", "ascend/sim:0".

    Returns:
        The device, opened on first use.

    Raises:
        BackendUnavailable: the backend is missing, failed to load, or has no such device; says why and the fix.
        InvalidArgument: `spec` is malformed.

    >>> set_backend("cpu").spec
    'cpu:0'
    """
    chosen = _shared(parse(spec))
    _Process.device = chosen
    return chosen


@contextlib.contextmanager
def use_backend(spec: str | Device) -> Iterator[Device]:
    """Choose the device inside a `with` block, for this thread (context) only.

    A generator that yields inside the block lends the choice to its caller until it is resumed or closed, as with
    every context variable: choose outside the generator, or around each step.

    Args:
        spec: as for `set_backend`, or an opened device.

    Raises:
        BackendUnavailable, InvalidArgument: as `set_backend`.

    >>> with use_backend("cpu") as chosen:
    ...     chosen is current_device()
    True
    """
    chosen = spec if isinstance(spec, Device) else _shared(parse(spec))
    with _context.using(chosen):
        yield chosen


def current_device() -> Device:
    """The device ops run on now: `use_backend` > `set_backend` > DEEPINFER_BACKEND > automatic choice.

    Raises:
        BackendUnavailable: DEEPINFER_BACKEND names a backend that cannot be used.
    """
    found = _context.get() or _Process.device
    if found is not None:
        return found
    asked = config.default_backend()
    if asked:
        return _asked(asked)
    with _lock:
        if _Process.automatic is None:
            _Process.automatic = _choose()
        return _Process.automatic


def _asked(spec: str) -> Device:
    """The device that the environment names; errors say that it was the environment."""
    try:
        return _shared(parse(spec, "DEEPINFER_BACKEND"))
    except BackendUnavailable as error:
        reason = f"chosen by the environment variable DEEPINFER_BACKEND={spec!r}"
        raise BackendUnavailable(str(error).partition("\n")[0], [*error.reasons, reason], error.fix) from error


def _choose() -> Device:
    passed: list[str] = []
    ranked: list[tuple[int, Backend, Probe]] = []
    for name in discovery.names():
        found = discovery.state(name)
        if found.backend is None:
            passed.append(f"{name}: {found.error}")
            continue
        probe = plugin.probe(found.backend)
        if probe.available:
            ranked.append((found.backend.priority, found.backend, probe))
        else:
            passed.append(f"{name}: {'; '.join(probe.reasons)}")
    for _, backend, _probe in sorted(ranked, key=lambda item: -item[0]):
        chosen = _try_hardware(backend, passed)
        if chosen is not None:
            config.logger.info("using %s; passed over: %s", chosen.spec, " | ".join(passed) or "nothing")
            return chosen
    return device("cpu")


def _try_hardware(backend: Backend, passed: list[str]) -> Device | None:
    """Open device 0 when it is real hardware or the host; a simulator is never chosen automatically."""
    if backend.priority < 0:
        return None
    try:
        candidate = device(backend.name)
    except DeepInferError as error:  # a driver that fails to open its context is passed over, with its message
        passed.append(f"{backend.name}: {error}")
        return None
    return None if candidate.props.kind is DriverKind.SIMULATOR else candidate


def devices() -> list[str]:
    """Specifications of every device that can be opened now, simulators included; opens none.

    >>> "cpu:0" in devices()
    True
    """
    found: list[str] = []
    for name in discovery.names():
        backend = discovery.state(name).backend
        if backend is None:
            continue
        for driver in backend.drivers:
            probe = plugin.probe(backend, driver)
            label = f"{name}/{driver}" if driver else name
            found += [f"{label}:{index}" for index in range(probe.device_count if probe.available else 0)]
    return found


def forget_choice() -> None:
    """Forget what was chosen for the process; opened devices stay open (tests)."""
    with _lock:
        _Process.device = _Process.automatic = None


def reset() -> None:
    """Forget every choice and close every opened device (tests)."""
    with _lock:
        for _, opened in _opened.values():
            opened.close()
        _opened.clear()
        forget_choice()
