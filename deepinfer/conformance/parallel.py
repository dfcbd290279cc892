"""Runs the suite's items in several processes.

Why: a simulator uses one core, and a full listing takes minutes. Every process opens the device for itself and lists
the same items; the parent hands out numbers of items. Work on different ops runs side by side: processes that are at
the same op would wait for each other's compilations.
Invariants: results come back in the order of the listing, as from one process; a process that dies ends the run with an
error, never with fewer results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path

import torch

from deepinfer.config import logger
from deepinfer.conformance import suite
from deepinfer.conformance.item import Item, Target
from deepinfer.conformance.report import Result
from deepinfer.hal import discovery
from deepinfer.hal.types import DriverKind

CHUNK = 12  # items that end a batch of work; neighbours share compiled kernels
MOST = 8  # processes that are started unasked: each holds torch and a device of its own, about 0.6 GB
WORTH = 100  # items that repay the start of a process, some seconds
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "quota period" in microseconds of CPU time, or "max period"


@dataclass(frozen=True)
class Listing:
    """What a process needs to list the same items as its parent."""

    backend: str
    full: bool
    model: str | None
    profile: Path | None
    levels: tuple[str, ...]
    ops: tuple[str, ...] | None
    threads: int


_opened: list[tuple[Target, list[Item]]] = []  # of a worker process


def _open(listing: Listing) -> None:
    torch.set_num_threads(listing.threads)
    target = suite.target(listing.backend, full=listing.full, model=listing.model, profile=listing.profile)
    _opened[:] = [(target, suite.collect(target, listing.levels, listing.ops))]


def _execute(numbers: Sequence[int]) -> list[tuple[int, Result]]:
    ((target, items),) = _opened
    return [(number, suite.execute(items[number], target)) for number in numbers]


def chunks(items: Sequence[Item]) -> Iterator[list[int]]:
    """Numbers of items in the order of work: the engine's long checks singly, then neighbouring cases of one op.

    A case stays in one process: its checks share arguments, reference and kernels.
    """
    yield from ([number] for number, item in enumerate(items) if item.level == "L3")
    found: list[int] = []
    for number, item in enumerate(items):
        if item.level == "L3":
            continue
        last = items[found[0]].subject if found else item.subject
        same_case = bool(found) and (item.subject, item.case) == (items[found[-1]].subject, items[found[-1]].case)
        if found and (item.subject != last or (len(found) >= CHUNK and not same_case)):
            yield found
            found = []
        found.append(number)
    if found:
        yield found


def in_turn(found: Sequence[list[int]], jobs: int) -> list[list[int]]:
    """The batches `found` in the order of work of `jobs` processes: from `jobs` places of the listing by turns."""
    share = -(-len(found) // jobs)
    parts = [found[first : first + share] for first in range(0, len(found), max(share, 1))]
    return [batch for row in zip_longest(*parts) for batch in row if batch is not None]


def usable_cores(quota: Path = QUOTA) -> int:
    """Cores that this process may use: its affinity, cut to the quota of its control group, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
    except (OSError, ValueError):  # no control groups of version 2 here
        return max(cores, 1)
    return cores if allowed == "max" else max(min(cores, int(allowed) // int(period)), 1)


def processes(target: Target, items: Sequence[Item], jobs: int | None) -> int:
    """How many processes run `items`: as many as asked for, or (None) one per usable core, if the work repays them.

    Hardware gets one unasked, so that checks do not share it. A backend that only this process knows gets one, whatever
    was asked for, and a warning.
    """
    if jobs is None:
        if target.device.props.kind is DriverKind.HARDWARE:
            return 1
        engine = any(item.level == "L3" for item in items)
        jobs = max(min(usable_cores(), MOST, MOST if engine else len(items) // WORTH), 1)
    if jobs > 1 and not discovery.in_every_process(target.backend.name):
        logger.warning(
            "backend %r was registered in this process and is unknown to others: conformance takes one process, not %d",
            target.backend.name, jobs,
        )
        return 1
    return jobs


def execute(
    listing: Listing, items: Sequence[Item], jobs: int, progress: Callable[[int, int, Result], None] | None = None
) -> list[Result]:
    """The results of all `items`, run by `jobs` processes."""
    results: dict[int, Result] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _open, (listing,)) as pool:
        waiting = [pool.submit(_execute, numbers) for numbers in in_turn(list(chunks(items)), jobs)]
        for done in as_completed(waiting):
            for number, result in done.result():
                results[number] = result
                if progress is not None:
                    progress(len(results), len(items), result)
    return [results[number] for number in range(len(items))]
