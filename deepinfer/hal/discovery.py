"""Finds backends through entry points and keeps one state per backend: loaded, failed or missing.

Invariants: nothing is imported before a backend is asked for; a plugin that fails to load is a warning with its
traceback and a `failed` state, never silence; loading happens once per process and is thread-safe.
"""

from __future__ import annotations

import difflib
import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from deepinfer.config import logger
from deepinfer.errors import BackendUnavailable, invalid
from deepinfer.hal import plugin
from deepinfer.hal.backend import ARCH_ALIASES, KNOWN, Backend

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


lock = threading.RLock()
_states: dict[str, BackendState] = {}
_extra: dict[str, Callable[[], Backend]] = {}


def register_backend(name: str, factory: Callable[[], Backend]) -> None:
    """Add a backend without an entry point (tests, notebooks). A later registration replaces an earlier one.

    Args:
        name: the backend's name, equal to `Backend.name`.
        factory: called without arguments on first use; what it raises is reported by `deepinfer.device(name)`.

    Raises:
        InvalidArgument: `name` is no backend name, or `factory` cannot be called.

    >>> from deepinfer.hal.null import NullBackend
    >>> register_backend("null", NullBackend)
    >>> unregister_backend("null")
    """
    if not isinstance(name, str) or not plugin.NAME.fullmatch(name):
        rule = "must be lower case letters, digits and _, starting with a letter"
        near = re.sub(r"[^a-z0-9_]", "_", str(name).lower())
        raise invalid("name", name, rule, nearest=repr(near) if plugin.NAME.fullmatch(near) else None)
    if not callable(factory):
        raise invalid("factory", factory, "must be callable without arguments and return a deepinfer.hal.Backend")
    with lock:
        _extra[name] = factory
        _states.pop(name, None)


def unregister_backend(name: str) -> None:
    """Undo `register_backend`; unknown names are ignored."""
    with lock:
        _extra.pop(name, None)
        _states.pop(name, None)


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _rivals(name: str) -> list[EntryPoint]:
    """All entry points called `name` when they disagree: which one an interpreter lists first is no rule."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    return found if len({entry.value for entry in found}) > 1 else []


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def in_every_process(name: str) -> bool:
    """Whether a new process finds the backend `name` (canonical) too: by its entry point, not registered here."""
    with lock:
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
    choices = [*names(), *ARCH_ALIASES, *(alias for entry in KNOWN for alias in entry.aliases)]
    close = difflib.get_close_matches(name[:100], choices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise BackendUnavailable(f"unknown backend {name[:100]!r}", [f"known names are {', '.join(choices)}{hint}"])


def state(name: str) -> BackendState:
    """The state of backend `name` (canonical), loading it on first use."""
    with lock:
        if name not in _states:
            _states[name] = _load(name)
        return _states[name]


def _load(name: str) -> BackendState:
    if name in _extra:
        return _create(name, _extra[name], "registered in this process")
    entry = _installed().get(name)
    known = next((k for k in KNOWN if k.name == name), None)
    if entry is None:
        fix = known.install if known else None
        return BackendState(name, None, f"no installed package provides backend {name!r}", fix)
    rivals = _rivals(name)
    if rivals:
        packages = ", ".join(f"{_owner(rival)} ({rival.value})" for rival in rivals)
        own = [rival for rival in rivals if known and _owner(rival) == known.distribution]
        error = f"several packages provide backend {name!r}: {packages}; uninstall all but one"
        logger.warning("%s%s", error, f"; using that of {known.distribution}" if known and own else "")
        if not own:
            return BackendState(name, None, error, None, _owner(entry))
        entry = own[0]
    chosen = entry
    return _create(name, lambda: _call_entry(chosen), _owner(entry))


def _call_entry(entry: EntryPoint) -> Backend:
    backend: Backend = entry.load()()
    return backend


def _create(name: str, factory: Callable[[], Backend], distribution: str) -> BackendState:
    try:
        backend = factory()
        plugin.check(name, backend)
    except (Exception, SystemExit) as error:  # a plugin may raise anything; it must not take the host down with it
        logger.warning("backend %r of %s failed to load:\n%s", name, distribution, traceback.format_exc())
        return BackendState(name, None, f"{type(error).__name__}: {error}", None, distribution)
    return BackendState(name, backend, None, None, distribution)


def load(name: str) -> Backend:
    """The backend called `name` (canonical), or BackendUnavailable with the reason and the fix."""
    found = state(name)
    if found.backend is None:
        raise BackendUnavailable(f"backend {name!r} cannot be used", [found.error or found.status], found.fix)
    return found.backend
