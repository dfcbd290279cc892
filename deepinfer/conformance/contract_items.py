"""Level L0: what a plugin owes the core before any device is opened, and what its kernels declare."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from deepinfer.conformance import sources
from deepinfer.conformance.item import Item, Target, require, require_none
from deepinfer.hal import discovery
from deepinfer.hal.backend import API_VERSION, KNOWN
from deepinfer.hal.types import Probe, Support
from deepinfer.registry import Call, Kernel, get_spec, spec_names
from deepinfer.registry.dispatch import make_call

PROBE_SECONDS = 0.05
SUPPORTS_SECONDS = 50e-6
IMPORT_SECONDS = 3.0  # what a plugin may add to an interpreter that has torch and deepinfer loaded
SAMPLES = 4  # cases per op whose calls are shown to `supports`
HEAVY = ("triton", "torch_npu", "acl", "cuda.core", "transformers")


def items(target: Target) -> Iterator[Item]:
    """All L0 items for `target`."""
    for name, check in (
        ("names", _names), ("probe never raises", _probe_robust), ("probe is fast", _probe_fast),
        ("profile is readable", _profile_readable), ("kernels name real ops", _kernel_ops),
        ("kernel declarations", _kernel_declarations),
    ):
        yield Item("L0", "backend", "", name, check)
    if _entry(target) is not None:
        yield Item("L0", "backend", "", "import is light", _import_light)
    for kernel in target.backend.kernels():
        yield Item("L0", str(kernel.op), str(kernel.name), "supports", _supports(kernel))


def _entry(target: Target) -> Any:
    found = entry_points(group=discovery.GROUP, name=target.backend.name)
    return next(iter(found), None)


def _names(target: Target) -> None:
    backend = target.backend
    pattern = re.compile(r"[a-z][a-z0-9_]*")
    names = (backend.name, *backend.aliases, *(name for name in backend.drivers if name))
    problems = [f"{name!r} must be lower case letters, digits and _" for name in names if not pattern.fullmatch(name)]
    if backend.api_version != API_VERSION:
        problems.append(f"api_version {backend.api_version}, this core has {API_VERSION}")
    taken = {alias for known in KNOWN if known.name != backend.name for alias in (known.name, *known.aliases)}
    problems += [f"alias {alias!r} belongs to another backend" for alias in backend.aliases if alias in taken]
    priority: object = backend.priority
    if not isinstance(priority, int):
        problems.append(f"priority {priority!r} must be an integer")
    require_none(problems)


def _probe_robust(target: Target) -> None:
    for driver in (*target.backend.drivers, "no-such-driver"):
        try:
            probe = target.backend.probe(driver)
        except Exception as error:  # whatever it is, it is the finding
            require(False, f"probe({driver!r}) raised {type(error).__name__}: {error}")
            raise
        require(isinstance(probe, Probe), f"probe({driver!r}) returned {type(probe).__name__}, must be a Probe")
        require(probe.available or bool(probe.reasons), f"probe({driver!r}) says unavailable and gives no reason")
        require(not probe.available or probe.device_count > 0, f"probe({driver!r}) is available with no device")


def _probe_fast(target: Target) -> None:
    for driver in target.backend.drivers:
        best = _best_seconds(partial(target.backend.probe, driver), PROBE_SECONDS, 10)
        require(best < PROBE_SECONDS, f"probe({driver!r}) took {best * 1e3:.1f} ms at best, must be < 50 ms")


def _best_seconds(call: Callable[[], object], limit: float, tries: int) -> float:
    """The shortest of up to `tries` calls; stops at the first below `limit`: a busy machine costs time, no pass."""
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if best < limit:
            break
    return best


def _profile_readable(target: Target) -> None:
    path = target.backend.conformance()
    require(path is None or Path(path).is_file(), f"conformance() names {path}, which is no file")


def _import_light(target: Target) -> None:
    """In a fresh interpreter the entry point loads quickly, alone, and opens nothing."""
    entry = _entry(target)
    code = (
        "import sys, time, torch, deepinfer, deepinfer.hal.discovery as d\n"
        "start = time.perf_counter()\n"
        f"d.load({target.backend.name!r})\n"
        "print(time.perf_counter() - start)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('deepinfer_')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    require(done.returncode == 0, f"loading {entry.value} in a fresh interpreter failed:\n{done.stderr[-2000:]}")
    seconds, heavy, _ = done.stdout.splitlines()[-3:]
    require(heavy == "[]", f"loading {entry.value} imports {heavy}")
    require(float(seconds) < IMPORT_SECONDS, f"loading {entry.value} took {seconds} s, must be < {IMPORT_SECONDS} s")


def _kernel_ops(target: Target) -> None:
    known = set(spec_names())
    require_none([f"{k!r}: op {k.op!r} is not registered" for k in target.backend.kernels() if k.op not in known])


def _kernel_declarations(target: Target) -> None:
    problems: list[str] = []
    seen: set[tuple[str, str]] = set()
    for kernel in target.backend.kernels():
        key = (str(kernel.op), str(kernel.name))
        if key in seen:
            problems.append(f"{kernel!r}: the name is used twice for this op")
        seen.add(key)
        if kernel.tier not in ("native", "portable"):
            problems.append(f"{kernel!r}: tier {kernel.tier!r} must be 'native' or 'portable'")
        priority: object = kernel.priority
        if not isinstance(priority, int):
            problems.append(f"{kernel!r}: priority {priority!r} must be an integer")
        problems += [f"{kernel!r}: source {name} does not exist" for name in sources.missing(kernel)]
    require_none(problems)


def _sample_calls(target: Target, op: str) -> list[Call]:
    spec = get_spec(op)
    device = target.device.torch_device
    calls = []
    for case in [case for case in spec.cases() if "quick" in case.tags][:SAMPLES]:
        args = case.build()
        moved = tuple(target.device.to_device(v) if hasattr(v, "untyped_storage") else v for v in args.values())
        ordered = dict(zip(args, moved, strict=True))
        calls.append(make_call(spec, [ordered[p.name] for p in spec.params], (None,) * len(spec.returns), device))
    return calls


def _supports(kernel: Kernel) -> Any:
    def run(target: Target) -> None:
        props = target.device.props
        bare = replace(props, caps=frozenset(), extra={}, compute_units=0, memory_bytes=0)
        for call in _sample_calls(target, str(kernel.op)):
            answers = [kernel.supports(props, call) for _ in range(3)]
            require(all(isinstance(a, Support) for a in answers), f"{kernel!r}: supports must return a Support")
            require(answers[0] == answers[2], f"{kernel!r}: supports gave two answers for one call: {answers}")
            require(all(r.strip() for r in answers[0].reasons), f"{kernel!r}: supports gave an empty reason")
            require(isinstance(kernel.supports(bare, call), Support), f"{kernel!r}: supports needs unknown properties")
            best = _best_seconds(partial(kernel.supports, props, call), SUPPORTS_SECONDS, 500)
            require(best < SUPPORTS_SECONDS, f"{kernel!r}: supports took {best * 1e6:.0f} us at best, must be < 50 us")

    return run
