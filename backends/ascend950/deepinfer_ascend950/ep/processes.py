"""The ranks of a `ProcessGroup` on one host, each with a simulated device: windows in shared memory that all map.

A rank's file: one page with its state and what it posts, then its window. Order of meeting: own file, barrier with a
deadline, names gathered, everybody's files mapped, barrier, own name removed (so a run that is killed later leaves
nothing).

Invariants: the owner holds an exclusive flock for as long as it lives, which the kernel drops however it dies; windows
start zeroed; memory is unmapped when its last view is gone. Flags are ordered by the acquire loads and release stores
of the simulator's scalar accesses; its checkers see each process by itself. The page is read and written by system
calls, whose locks order them: an epoch stands there only after its words.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
import tempfile
import time
import uuid
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from deepinfer.errors import BackendUnavailable, CommTimeout
from deepinfer.hal import Device
from deepinfer.ops.deep_ep.transport import Deadline, timed_out
from deepinfer_ascend950.ep.meeting import CLOSED, FAILED, OPEN

PAGE = 4096
MAIL, MAIL_WORDS = 64, 16  # two slots by parity of the epoch: the epoch, the number of words, words
STATES = (OPEN, CLOSED, FAILED)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def why_not(group: Any) -> str:
    """Why the ranks of `group` cannot meet here, or ""."""
    if not isinstance(group, dist.ProcessGroup):
        return f"{type(group).__name__} is neither a LocalGroup nor a ProcessGroup"
    name = dist.get_backend(group)
    return "" if name == "gloo" else f"processes meet through a gloo group, this one is {name}"


class Shared:
    """A mapped file: integers for peers in its first page, and `window` (uint8)."""

    def __init__(self, path: Path, descriptor: int, nbytes: int) -> None:
        self.path, self._file = path, os.fdopen(descriptor, "r+b", buffering=0)
        self.window = torch.frombuffer(mmap.mmap(descriptor, PAGE + nbytes), dtype=torch.uint8)[PAGE:]

    @staticmethod
    def create(nbytes: int) -> Shared:
        """A new file of zeros, locked by this process; BackendUnavailable when memory is short."""
        folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
        path = folder / f"deepinfer-ascend-{os.getuid()}-{uuid.uuid4().hex}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            os.posix_fallocate(descriptor, 0, PAGE + nbytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise BackendUnavailable(
                f"deep_ep: a window needs {nbytes} bytes of shared memory in {folder}",
                [str(error)],
                f"mount -o remount,size={8 * nbytes} {folder}   (containers: --shm-size)",
            ) from error
        return Shared(path, descriptor, nbytes)

    @staticmethod
    def attach(path: Path, nbytes: int) -> Shared:
        """Map a peer's file."""
        return Shared(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), nbytes)

    def put(self, offset: int, *values: int) -> None:
        """Write integers of the page."""
        os.pwrite(self._file.fileno(), struct.pack(f"<{len(values)}q", *values), offset)

    def get(self, offset: int, count: int) -> tuple[int, ...]:
        """Read integers of the page."""
        return struct.unpack(f"<{count}q", os.pread(self._file.fileno(), 8 * count, offset))

    @property
    def owner_alive(self) -> bool:
        """Whether the owner still holds its lock (asked by peers)."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Drop the lock; views keep the memory."""
        self._file.close()


class Pause:
    """Where threads would wait for each other, processes sleep: nobody can wake them."""

    def __enter__(self) -> Pause:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def notify_all(self) -> None:
        """Peers look for themselves."""

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class ProcessMeeting:
    """One buffer's ranks, as `meeting.Meeting` is for threads."""

    def __init__(self, group: Any, size: int) -> None:
        self._group, self._size, self.changed = group, size, Pause()
        self._files: list[Shared] = []
        self._rank = 0

    def make_window(self, device: Device, nbytes: int) -> torch.Tensor:
        """This rank's window, zeroed, where other processes can map it."""
        self._own = Shared.create(nbytes)
        return self._own.window

    def arrive(self, rank: int, device: Device, window: torch.Tensor, deadline: Deadline) -> list[torch.Tensor]:
        """Everybody's windows, once all are there."""
        self._rank = rank
        try:
            self._barrier(deadline)
            host = BOOT_ID.read_text().strip() if BOOT_ID.exists() else os.uname().nodename
            cards: list[Any] = [None] * self._size
            dist.all_gather_object(cards, (host, str(self._own.path), window.numel()), group=self._group)
            apart = [peer for peer, card in enumerate(cards) if card[0] != host]
            if apart:
                raise BackendUnavailable("deep_ep: simulated devices are on one host", [f"ranks {apart} are elsewhere"])
            for peer, (_, path, nbytes) in enumerate(cards):
                self._files.append(self._own if peer == rank else Shared.attach(Path(path), nbytes))
            self._barrier(deadline)
        except RuntimeError as error:
            raise CommTimeout(f"deep_ep.hello: rank {rank}: a rank left while ranks met: {error}") from error
        finally:
            self._own.path.unlink(missing_ok=True)
        return [file.window for file in self._files]

    def _barrier(self, deadline: Deadline) -> None:
        try:
            limit = timedelta(seconds=max(deadline.remaining, 0.001))
            dist.monitored_barrier(self._group, timeout=limit, wait_all_ranks=True)
        except RuntimeError as error:
            found = re.search(r"[Rr]anks? ([\d, ]+?) failed", str(error))
            missing = [int(text) for text in found[1].split(",")] if found else [0]
            raise timed_out("hello", self._rank, deadline, missing) from error

    def post(self, rank: int, epoch: int, words: list[int]) -> None:
        """Tell that `rank` has enqueued its push of exchange `epoch`, which its header describes with `words`."""
        at = MAIL + epoch % 2 * 8 * MAIL_WORDS
        self._own.put(at + 8, len(words), *words)
        self._own.put(at, epoch)

    def posted(self, peer: int, epoch: int) -> list[int] | None:
        """What `peer` posted for `epoch`, or None while it has not."""
        at, file = MAIL + epoch % 2 * 8 * MAIL_WORDS, self._files[peer]
        if file.get(at, 1) != (epoch,):
            return None
        count, *words = file.get(at + 8, MAIL_WORDS - 1)
        return words[:count]

    def leave(self, rank: int, state: str) -> None:
        """Let waiting peers know; the first reason stays."""
        if self._own.get(0, 1) == (STATES.index(OPEN),):
            self._own.put(0, STATES.index(state))

    def left(self, peer: int) -> str:
        """Why `peer` will send nothing any more, or ""."""
        file = self._files[peer]
        state = STATES[file.get(0, 1)[0]]
        if state is not OPEN:
            return state
        return "" if peer == self._rank or file.owner_alive else "died"

    def close(self) -> None:
        """Give back this rank's files; what peers have mapped stays theirs."""
        for file in self._files:
            if file is not self._own:
                file.close()
        self._own.close()
        self._files = []
