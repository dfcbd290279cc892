"""Runs the suite's items in several processes.

Why: a simulator uses one core, and a full listing takes minutes. Every process opens the device for itself and lists
the same items; the parent hands out numbers of items.
Invariants: results come back in the order of the listing, as from one process; a process that dies ends the run with an
error, never with fewer results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from deepinfer.conformance import suite
from deepinfer.conformance.item import Item, Target
from deepinfer.conformance.report import Result

CHUNK = 12  # items that end a batch of work; neighbours share compiled kernels


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


def execute(
    listing: Listing, items: Sequence[Item], jobs: int, progress: Callable[[int, int, Result], None] | None = None
) -> list[Result]:
    """The results of all `items`, run by `jobs` processes."""
    results: dict[int, Result] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _open, (listing,)) as pool:
        waiting = [pool.submit(_execute, numbers) for numbers in chunks(items)]
        for done in as_completed(waiting):
            for number, result in done.result():
                results[number] = result
                if progress is not None:
                    progress(len(results), len(items), result)
    return [results[number] for number in range(len(items))]
