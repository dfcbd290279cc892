"""Calls into a backend that may break its contract: what it does wrong becomes a reason, never the caller's crash.

Invariants: an exception that is no error of this library is logged with its traceback once and told as a reason;
results of a wrong class are refused here, so that the layers above may rely on them.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

from deepinfer.config import logger
from deepinfer.errors import BackendUnavailable, DeepInferError
from deepinfer.hal.backend import API_VERSION, Backend
from deepinfer.hal.device import Device
from deepinfer.hal.types import Probe

NAME = re.compile(r"[a-z][a-z0-9_]*")
_told: set[tuple[str, str]] = set()


def check(name: str, backend: object) -> None:
    """Raise unless `backend` is a Backend called `name` whose attributes have the types that the interface says."""
    if not isinstance(backend, Backend):
        raise TypeError(f"entry point {name!r} returned {type(backend).__name__}, must be a deepinfer.hal.Backend")
    if not NAME.fullmatch(name):
        raise ValueError(f"backend name {name!r} must be lower case letters, digits and _, starting with a letter")
    if backend.name != name:
        raise ValueError(f"entry point {name!r} returned a backend called {backend.name!r}, names must agree")
    if backend.api_version != API_VERSION:
        raise ValueError(f"backend {name!r} was written for API {backend.api_version}, this core has {API_VERSION}")
    for attribute in ("aliases", "drivers"):
        value: object = getattr(backend, attribute)
        if not isinstance(value, tuple) or not all(isinstance(entry, str) for entry in value):
            raise TypeError(f"backend {name!r}: {attribute} is {value!r}, must be a tuple of str")
    if not backend.drivers:
        raise ValueError(f"backend {name!r}: drivers is empty, must name at least the default driver, (\"\",)")
    priority: object = backend.priority
    if not isinstance(priority, int):
        raise TypeError(f"backend {name!r}: priority is {priority!r}, must be an int")


def probe(backend: Backend, driver: str = "") -> Probe:
    """`backend.probe(driver)`; unavailable with the reason when it raises or answers with something else."""
    try:
        found: object = backend.probe(driver)
    except Exception as error:  # a plugin may raise anything; the reason is told and the traceback logged
        return Probe(False, reasons=(_tell(backend, f"probe({driver!r})", error),))
    if not isinstance(found, Probe):
        return Probe(False, reasons=(f"probe({driver!r}) returned {type(found).__name__}, must be a Probe",))
    count: object = found.device_count
    if not isinstance(count, int) or count < 0:
        return Probe(False, reasons=(f"probe({driver!r}) counts {count!r} devices, must be an integer >= 0",))
    return found


def open_device(backend: Backend, index: int, driver: str, arch: str | None) -> Device:
    """`backend.open(...)`.

    Raises:
        BackendUnavailable: it raised something that is no error of this library, or returned no device of its own.
        DeepInferError: as raised by the backend.
    """
    try:
        opened: object = backend.open(index, driver, arch)
    except DeepInferError:
        raise
    except Exception as error:
        reason = _tell(backend, f"open({index}, {driver!r})", error)
        raise BackendUnavailable(f"backend {backend.name!r} cannot be used", [reason]) from error
    if not isinstance(opened, Device):
        reason = f"its open() returned {type(opened).__name__}, must be a deepinfer.hal.Device"
    elif opened.backend != backend.name:
        reason = f"its open() returned a device of backend {opened.backend!r} and would run that backend's kernels"
    else:
        return opened
    raise BackendUnavailable(
        f"backend {backend.name!r} cannot be used", [reason], f"give Device.__init__ the name {backend.name!r}"
    )


def kernels(backend: Backend) -> Sequence[object]:
    """What `backend.kernels()` declares, in its order; the caller checks the entries.

    Raises:
        BackendUnavailable: it raised, or returned something that cannot be listed.
    """
    try:
        return tuple(backend.kernels())
    except DeepInferError:
        raise
    except Exception as error:
        reason = _tell(backend, "kernels()", error)
        raise BackendUnavailable(f"backend {backend.name!r} cannot be used", [reason]) from error


def _tell(backend: Backend, call: str, error: Exception) -> str:
    """The reason as text; its traceback is logged the first time."""
    reason = f"{call} raised {type(error).__name__}: {error}"
    if (backend.name, reason) not in _told:
        _told.add((backend.name, reason))
        logger.warning("backend %r: %s\n%s", backend.name, reason, traceback.format_exc())
    return reason
