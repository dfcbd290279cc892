"""Collects the checks for one device, applies the backend's profile, runs them, and reports.

Invariants: the listing does not depend on earlier runs; an exception from a check becomes a failed result, never the
end of the run; expectations are strict both ways.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import deepinfer
from deepinfer.conformance import contract_items, device_items, engine_items, op_items, sources
from deepinfer.conformance import profile as profiles
from deepinfer.conformance.item import Breach, Item, Target, Vacuous
from deepinfer.conformance.profile import Entry, Profile
from deepinfer.conformance.report import Report, Result
from deepinfer.errors import UnsupportedError, invalid
from deepinfer.hal import device as open_device
from deepinfer.hal import discovery
from deepinfer.registry import spec_names
from deepinfer.registry.kernels import candidates

LEVELS = ("L0", "L1", "L2", "L3")


def target(
    backend: str, *, full: bool = False, model: str | None = None, profile: Path | None = None
) -> Target:
    """Open the device that `backend` (name[/driver][:index]) names, with its profile.

    `profile` overrides the path that the backend itself gives. BackendUnavailable and InvalidArgument pass through.
    """
    opened = open_device(backend)
    plugin = discovery.load(opened.backend)
    path = profile or plugin.conformance()
    return Target(plugin, opened, profiles.load(path, opened.driver), full, model)


def collect(
    target: Target, levels: Sequence[str] = LEVELS, ops: Iterable[str] | None = None, profile_name: str | None = None
) -> list[Item]:
    """All items of the tier that `target` asks for, expectations attached."""
    unknown = sorted(set(levels) - set(LEVELS))
    if unknown:
        raise invalid("levels", unknown[0], f"must be among {LEVELS}", nearest="'L2'")
    items: list[Item] = []
    if "L0" in levels:
        items += contract_items.items(target)
        items.append(Item("L0", "backend", "", "profile is current", _profile_current))
    if "L1" in levels:
        items += device_items.items(target)
    if "L2" in levels:
        items += op_items.items(target, ops, profile_name)
    if "L3" in levels:
        items += engine_items.items(target)
    return list(_expectations(items, target.profile))


def _profile_current(target: Target) -> None:
    """Every entry of the profile matches something in the full listing."""
    if not target.profile.entries:
        return
    everything = replace(target, full=True, profile=Profile())
    stale = target.profile.stale(collect(everything))
    if stale:
        raise Breach([f"{target.profile.path}: stale, matches nothing: {entry}" for entry in stale])


def _expectations(items: Iterable[Item], profile: Profile) -> Iterator[Item]:
    """Attach profile entries. A case unsupported as a whole becomes one item that demands the refusal."""
    refused: set[tuple[str, str]] = set()
    for item in items:
        entry = None if item.level in ("L0", "L1") and item.check == "profile is current" else profile.find(item)
        if entry is None:
            yield item
        elif entry.kind != "unsupported" or entry.check != "*" or item.check == "refuses":
            yield replace(item, expect=None if item.check == "refuses" else entry)
        elif (item.subject, item.case) not in refused:
            refused.add((item.subject, item.case))
            yield replace(item, expect=entry)


def execute(item: Item, target: Target) -> Result:
    """Run one item and judge it against its expectation."""
    if item.expect is not None and item.expect.kind == "skip":
        return _result(item, "skipped", item.expect.reason)
    start = time.perf_counter()
    outcome, message = _attempt(item, target)
    kernel = message if outcome == "passed" else ""
    outcome, message = _judge(item.expect, outcome, "" if kernel else message)
    return _result(item, outcome, message, time.perf_counter() - start, kernel)


def _result(item: Item, outcome: str, message: str, seconds: float = 0.0, kernel: str = "") -> Result:
    return Result(item.id, item.level, item.subject, item.case, item.check, outcome, message, round(seconds, 6), kernel)


def _attempt(item: Item, target: Target) -> tuple[str, str]:
    """(outcome, message); the message of a pass is the kernel that the check names."""
    try:
        return "passed", item.run(target) or ""
    except Vacuous as nothing:
        return "vacuous", str(nothing)
    except Breach as breach:
        return "failed", str(breach)
    except UnsupportedError as refusal:
        return ("refused" if refusal.reasons else "failed"), str(refusal)
    except Exception as error:  # whatever a backend raises is its result, not the suite's end
        return "failed", f"{type(error).__name__}: {error}"


def _judge(expect: Entry | None, outcome: str, message: str) -> tuple[str, str]:
    if expect is None:
        return ("failed", f"not supported and not listed: {message}") if outcome == "refused" else (outcome, message)
    if expect.kind == "unsupported":
        if outcome == "refused":
            return "unsupported", expect.reason
        return "failed", f"{outcome} but {expect} is listed. {message}".rstrip()
    if outcome in ("failed", "refused"):
        return "expected_failure", expect.reason
    return "failed", f"unexpected pass: remove {expect}"


def describe(target: Target) -> dict[str, str]:
    """Device facts for reports."""
    device = target.device
    return {
        "spec": device.spec, "name": device.props.name, "arch": device.props.arch,
        "kind": device.props.kind.name.lower(),
    }


def versions() -> dict[str, str]:
    """Versions that decide results."""
    return {"deepinfer": deepinfer.__version__, "torch": torch.__version__, "python": platform.python_version()}


def proved(target: Target, results: Iterable[Result]) -> dict[str, dict[str, Any]]:
    """op -> kernel -> cases, sources and their hash, from the passed reference checks."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.kernel and result.outcome == "passed":
            facts = found.setdefault(result.subject, {}).setdefault(result.kernel, {"cases": 0})
            facts["cases"] += 1
    registered = set(spec_names())
    for op, kernels in found.items():
        known = {one.name: one.kernel for one in candidates(target.device, op)} if op in registered else {}
        for name, facts in kernels.items():
            files = sources.files(known[name]) if name in known else sources.family(op.partition(".")[0])
            facts |= {"sources": sorted(files), "hash": sources.digest(files)}
    return found


def _in_turn(
    items: Sequence[Item], target: Target, progress: Callable[[int, int, Result], None] | None
) -> list[Result]:
    results: list[Result] = []
    for number, item in enumerate(items, 1):
        results.append(execute(item, target))
        if progress is not None:
            progress(number, len(items), results[-1])
    return results


def run(
    backend: str,
    quick: bool = True,
    report: str | Path | None = None,
    levels: Sequence[str] | None = None,
    *,
    ops: Iterable[str] | None = None,
    model: str | Path | None = None,
    profile: Path | None = None,
    progress: Callable[[int, int, Result], None] | None = None,
    jobs: int | None = 1,
) -> Report:
    """Run the suite against one device, without pytest.

    Args:
        backend: name[/driver][:index].
        quick: the quick tier; False adds the long tier's cases.
        report: file that gets the JSON form.
        levels: which of L0, L1, L2, L3; None = all.
        ops: limit L2 to these ops (shell patterns) or families.
        model: checkpoint directory for L3; without it L3 builds a small random model.
        profile: a conformance.toml to use instead of the backend's own.
        progress: called with (number done, number of items, result) after each item.
        jobs: processes that share the items; None = one per usable core, up to 8, for the host and simulators, one for
            hardware. They are spawned, so a script that asks for more than one needs `if __name__ == "__main__"`. A
            backend of `register_backend` is unknown to them: it runs in this process alone, with a warning. Results do
            not depend on the number.

    Returns:
        A `Report`: every result, what was proved per kernel, versions and the device.

    Raises:
        BackendUnavailable: the device cannot be opened.
        InvalidArgument: unknown level, a malformed profile, or jobs < 1.

    >>> run("cpu", levels=["L0"]).failures
    []
    """
    if jobs is not None and jobs < 1:
        raise invalid("jobs", jobs, "must be positive", nearest=1)
    chosen = target(backend, full=not quick, model=str(model) if model else None, profile=profile)
    start = time.perf_counter()
    wanted = None if ops is None else tuple(ops)
    items = collect(chosen, levels or LEVELS, wanted)
    from deepinfer.conformance import parallel  # it runs this module's functions in its processes

    jobs = parallel.processes(chosen, items, jobs)
    if jobs > 1:
        listing = parallel.Listing(
            backend, chosen.full, chosen.model, profile, tuple(levels or LEVELS), wanted,
            max(torch.get_num_threads() // jobs, 1),
        )
        results = parallel.execute(listing, items, jobs, progress)
    else:
        results = _in_turn(items, chosen, progress)
    done = Report(
        chosen.backend.name, describe(chosen), "quick" if quick else "full", versions(), results,
        time.perf_counter() - start, {"threads": torch.get_num_threads(), "jobs": jobs, "profile": chosen.profile.path},
        proved(chosen, results),
    )
    if report is not None:
        done.write(report)
    return done


__all__ = ["LEVELS", "collect", "describe", "execute", "proved", "run", "target", "versions"]
