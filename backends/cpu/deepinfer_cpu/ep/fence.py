"""Ordering of plain loads and stores between processes that share memory, from Python.

Flags are aligned 8-byte words; reading or writing one is a single machine instruction on x86-64 and aarch64 (numpy
stores aligned int64 items with one store). What is missing is order: data must be visible before the flag that
announces it, and must not be read before the flag was seen. x86-64 keeps loads among loads and stores among stores in
order, aarch64 keeps neither.

`full()` releases a lock that this object holds and takes it again. Unlocking is a store-release, locking a
load-acquire (CPython builds both on atomic operations of at least that strength, sem_post/sem_wait or C11). The Arm
memory model orders a store-release before a later load-acquire; nothing before the first or after the second may cross
it, so the pair is a full barrier. On x86-64 the locked instructions in both are full barriers themselves.
"""

from __future__ import annotations

import threading


class Fence:
    """A full memory barrier; one per thread of use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def full(self) -> None:
        """Everything before is ordered before everything after, for all observers."""
        self._lock.release()
        self._lock.acquire()
