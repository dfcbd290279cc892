"""One rank's communication memory: a file in shared memory that the owner creates and all peers map.

    state | per source rank: attached, header number, head, tail, two headers | per source rank: ring of chunks

Who writes what: the owner writes `state` and its `tail`s, source rank s writes everything else of row s and its ring.
Each word has its own cache line and one writer.

Invariants:
- The owner holds an exclusive flock on the file as long as it lives; the kernel drops it when the process dies,
  however it dies (and its forked children: a child that lives on keeps the lock, and death shows only at a deadline).
  Peers test it to tell a dead rank from a slow one, and a later run to reclaim files left behind.
- The name is removed as soon as every peer has mapped the file, so a run that is killed later leaves nothing.
- Space is allocated when the file is made: a full /dev/shm is an error there, not a SIGBUS later.
- Memory is unmapped when its last view is gone, never under one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import uuid
from pathlib import Path

import numpy as np
import torch

from deepinfer.errors import BackendUnavailable
from deepinfer.ops.deep_ep.geometry import HEADER_WORDS, LINE, RING_DEPTH, Geometry, control_bytes

PREFIX = "deepinfer-ep-"
OPEN, CLOSED, FAILED = 0, 1, 2
_WORD = 8
_ROW_BYTES = 4 * LINE + 2 * _WORD * HEADER_WORDS


def directory() -> Path:
    """Where slabs live: memory-backed if the system has it."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


class Slab:
    """A mapped slab; `create` for the owner, `attach` for a peer."""

    def __init__(self, path: Path, descriptor: int, geometry: Geometry) -> None:
        self.path = path
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._geometry = geometry
        memory = mmap.mmap(descriptor, geometry.slab_bytes)
        self.words = np.frombuffer(memory, dtype=np.int64, count=control_bytes(geometry.size) // _WORD)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)

    @staticmethod
    def create(geometry: Geometry) -> Slab:
        """A new slab of zeros, locked by this process."""
        while True:
            path = directory() / f"{PREFIX}{os.getuid()}-{uuid.uuid4().hex}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if _lock_new(path, descriptor):
                break
            os.close(descriptor)  # a reclaimer took the file between its creation and our lock
        try:
            _allocate(descriptor, geometry.slab_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise _no_space(geometry, error) from error
        return Slab(path, descriptor, geometry)

    @staticmethod
    def attach(path: Path, geometry: Geometry) -> Slab:
        """Map a peer's slab."""
        return Slab(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), geometry)

    @property
    def owner_alive(self) -> bool:
        """Whether the owner still holds its lock (asked by peers)."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def word(self, source: int, which: int) -> int:
        """Index in `words` of flag `which` (0 attached, 1 header number, 2 head, 3 tail) of source rank `source`."""
        return (LINE + source * _ROW_BYTES + which * LINE) // _WORD

    def header(self, source: int, number: int) -> slice:
        """Range in `words` of the header with this number; two are kept, so that a fast rank may be one call ahead."""
        first = (LINE + source * _ROW_BYTES + 4 * LINE) // _WORD + (number % 2) * HEADER_WORDS
        return slice(first, first + HEADER_WORDS)

    def chunk(self, source: int, number: int) -> torch.Tensor:
        """uint8 view of chunk `number` of the ring of `source`."""
        geometry = self._geometry
        place = source * RING_DEPTH + number % RING_DEPTH
        begin = control_bytes(geometry.size) + place * geometry.chunk_bytes
        return self._bytes[begin : begin + geometry.chunk_bytes]

    def unlink(self) -> None:
        """Remove the name; mappings stay."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Drop the lock and this object's views."""
        self._file.close()
        self.words = np.zeros(0, dtype=np.int64)
        self._bytes = torch.empty(0, dtype=torch.uint8)


def reclaim() -> list[Path]:
    """Remove slabs of this user whose owners are gone; returns what was removed."""
    removed: list[Path] = []
    for path in directory().glob(f"{PREFIX}{os.getuid()}-*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its owner was quicker
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            removed.append(path)
        except BlockingIOError:
            continue  # its owner lives
        finally:
            os.close(descriptor)
    return removed


def _allocate(descriptor: int, nbytes: int) -> None:
    """Give the file its size, with its space where the system can reserve it (macOS cannot)."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.ftruncate(descriptor, nbytes)


def _lock_new(path: Path, descriptor: int) -> bool:
    """Take the owner's lock; False when the name no longer leads to this file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _no_space(geometry: Geometry, error: OSError) -> BackendUnavailable:
    where = directory()
    space = os.statvfs(where)
    free = space.f_bavail * space.f_frsize
    return BackendUnavailable(
        f"deep_ep: rank {geometry.rank} needs {geometry.slab_bytes} bytes of shared memory, {where} has {free} free",
        [str(error)],
        fix=f"mount -o remount,size={geometry.size * geometry.slab_bytes} {where}   (containers: --shm-size)",
    )
