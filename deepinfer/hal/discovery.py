"""Finds backends through entry points and keeps one state per backend: loaded, failed or missing.

Invariants: nothing is imported before a backend is asked for; a plugin that fails to load is a warning with its
traceback and a `failed` state, never silence; loading happens once per process and is thread-safe.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from deepinfer.config import logger
from deepinfer.errors import BackendUnavailable
from deepinfer.hal.backend import API_VERSION, ARCH_ALIASES, KNOWN, Backend

GROUP = "deepinfer.backends"


@dataclass(frozen=True)
class BackendState:
    """What became of one backend: `backend` when loaded, else `error` (text) and perhaps `fix` (command)."""

    name: str
    backend: Backend | None
    error: str | None = None
    fix: str | None = None
    distribution: str | None = None

    @property
    def status(self) -> str:
        return "loaded" if self.backend else ("failed" if self.distribution else "missing")


_lock = threading.RLock()
_states: dict[str, BackendState] = {}
_extra: dict[str, Callable[[], Backend]] = {}


def register_backend(name: str, factory: Callable[[], Backend]) -> None:
    """Add a backend without an entry point (tests, notebooks). A later registration replaces an earlier one.

    Args:
        name: the backend's name, equal to `Backend.name`.
        factory: called without arguments on first use; what it raises is reported by `deepinfer.device(name)`.

    >>> from deepinfer.hal.null import NullBackend
    >>> register_backend("null", NullBackend)
    >>> unregister_backend("null")
    """
    with _lock:
        _extra[name] = factory
        _states.pop(name, None)


def unregister_backend(name: str) -> None:
    """Undo `register_backend`; unknown names are ignored."""
    with _lock:
        _extra.pop(name, None)
        _states.pop(name, None)


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def in_every_process(name: str) -> bool:
    """Whether a new process finds the backend `name` (canonical) too: by its entry point, not registered here."""
    with _lock:
        return name not in _extra and name in _installed()


def names() -> list[str]:
    """All backends that are installed, registered or known, in the order of the known table."""
    known = [entry.name for entry in KNOWN]
    return known + sorted((set(_installed()) | set(_extra)) - set(known))


def canonical(name: str) -> tuple[str, tuple[str, ...]]:
    """Resolve aliases: (backend name, architectures it is restricted to). Unknown names raise BackendUnavailable."""
    arch: tuple[str, ...] = ()
    if name in ARCH_ALIASES:
        name, arch = ARCH_ALIASES[name].backend, ARCH_ALIASES[name].arch
    for entry in KNOWN:
        if name == entry.name or name in entry.aliases:
            return entry.name, arch
    if name in _extra or name in _installed():
        return name, arch
    for candidate in [*_extra, *_installed()]:
        backend = state(candidate).backend
        if backend is not None and name in backend.aliases:
            return candidate, arch
    choices = ", ".join([*names(), *ARCH_ALIASES, *(alias for entry in KNOWN for alias in entry.aliases)])
    raise BackendUnavailable(f"unknown backend {name!r}", [f"known names are {choices}"])


def state(name: str) -> BackendState:
    """The state of backend `name` (canonical), loading it on first use."""
    with _lock:
        if name not in _states:
            _states[name] = _load(name)
        return _states[name]


def _load(name: str) -> BackendState:
    if name in _extra:
        return _create(name, _extra[name], "registered in this process")
    entry = _installed().get(name)
    if entry is None:
        known = next((k for k in KNOWN if k.name == name), None)
        fix = known.install if known else None
        return BackendState(name, None, f"no installed package provides backend {name!r}", fix)
    distribution = entry.dist.name if entry.dist else entry.value
    return _create(name, lambda: _call_entry(entry), distribution)


def _call_entry(entry: EntryPoint) -> Backend:
    backend: Backend = entry.load()()
    return backend


def _create(name: str, factory: Callable[[], Backend], distribution: str) -> BackendState:
    try:
        backend = factory()
        _check(name, backend)
    except Exception as error:  # a plugin may raise anything; it must not take the host down with it
        logger.warning("backend %r of %s failed to load:\n%s", name, distribution, traceback.format_exc())
        return BackendState(name, None, f"{type(error).__name__}: {error}", None, distribution)
    return BackendState(name, backend, None, None, distribution)


def _check(name: str, backend: Backend) -> None:
    if not isinstance(backend, Backend):
        raise TypeError(f"entry point {name!r} returned {type(backend).__name__}, must be a deepinfer.hal.Backend")
    if backend.name != name:
        raise ValueError(f"entry point {name!r} returned a backend called {backend.name!r}, names must agree")
    if backend.api_version != API_VERSION:
        raise ValueError(f"backend {name!r} was written for API {backend.api_version}, this core has {API_VERSION}")


def load(name: str) -> Backend:
    """The backend called `name` (canonical), or BackendUnavailable with the reason and the fix."""
    found = state(name)
    if found.backend is None:
        raise BackendUnavailable(f"backend {name!r} cannot be used", [found.error or found.status], found.fix)
    return found.backend
