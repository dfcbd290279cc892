"""The table of kernels: per device and op, all candidates in the order they are tried.

Order: pinned kernel, then higher priority, then name; the portable tier comes last. Backends declare kernels once;
`pin` lets a test or benchmark force one kernel inside a block.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer.errors import invalid
from deepinfer.hal import discovery, plugin
from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device
from deepinfer.hal.scoped import Scoped
from deepinfer.hal.types import DeviceProps, Support
from deepinfer.registry.call import Call
from deepinfer.registry.kernel import Kernel, PortableKernel
from deepinfer.registry.specs import get_spec, spec_names

_pins: Scoped[dict[tuple[str, str], str] | None] = Scoped("deepinfer_pins", None)  # (device, op) -> kernel
_lock = threading.RLock()
_by_backend: dict[str, tuple[Backend, dict[str, list[Kernel]]]] = {}


@dataclass(frozen=True)
class Candidate:
    """A kernel in the order of one device."""

    kernel: Kernel
    is_fallback: bool

    @property
    def name(self) -> str:
        return str(self.kernel.name)

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return self.kernel.supports(props, call)


def _declared(name: str) -> dict[str, list[Kernel]]:
    backend = discovery.load(name)
    with _lock:  # a backend is asked once, also when the first ops run in many threads
        found = _by_backend.get(name)
        if found is None or found[0] is not backend:
            found = _by_backend[name] = backend, _table(backend)
        return found[1]


def _table(backend: Backend) -> dict[str, list[Kernel]]:
    table: dict[str, list[Kernel]] = {}
    for kernel in plugin.kernels(backend):
        if not isinstance(kernel, Kernel):
            raise invalid(f"backend {backend.name!r}: kernels()", kernel, "must hold deepinfer.registry.Kernel objects")
        if kernel.op not in spec_names():
            raise invalid(f"backend {backend.name!r}: kernel {kernel.name!r}", kernel.op, "must name a registered op")
        if any(kernel.name == other.name for other in table.get(kernel.op, ())):
            raise invalid(f"backend {backend.name!r}: {kernel.op}", kernel.name, "must be declared by one kernel only")
        table.setdefault(str(kernel.op), []).append(kernel)
    for kernels in table.values():
        kernels.sort(key=lambda kernel: (-kernel.priority, kernel.name))
    return table


def forget(backend: str) -> None:
    """Drop what was declared by `backend`; its next use asks again (tests that register backends)."""
    _by_backend.pop(backend, None)


def candidates(device: Device, op: str) -> list[Candidate]:
    """All kernels that may run `op` on `device`, best first, the portable tier last."""
    backend = discovery.load(device.backend)
    native = [Candidate(kernel, False) for kernel in _declared(device.backend).get(op, [])]
    if not any(candidate.kernel.tier == "portable" for candidate in native):
        at_home = backend.portable_is_native
        native.append(Candidate(PortableKernel(get_spec(op), at_home), not at_home))
    pinned = (_pins.get() or {}).get((device.spec, op))
    if pinned is None:
        return native
    chosen = [candidate for candidate in native if candidate.name == pinned]
    if not chosen:
        names = ", ".join(candidate.name for candidate in native)
        raise invalid(f"pin({op!r})", pinned, f"must be a kernel of {device.spec}", nearest=names)
    return chosen


def cache_name(device: Device, op: str) -> str:
    """Under which name a device keeps what `op` resolved to: a pin of this context has a cache of its own."""
    pins = _pins.get()
    return op if pins is None else f"{op} pinned to {pins.get((device.spec, op))}"


@contextlib.contextmanager
def pin(device: Device, op: str, kernel: str) -> Iterator[None]:
    """Inside the block only kernel `kernel` may run `op` on `device`, in this context: not in other threads.

    Raises:
        InvalidArgument: `kernel` is none of the device's kernels for `op`, or there is no such op.
    """
    with _pins.using({**(_pins.get() or {}), (device.spec, op): kernel}):
        candidates(device, op)
        yield
