"""Where the ranks of a `LocalGroup` exchange the addresses of their windows, and what each enqueues and when it leaves.

Invariants: buffers are matched by the order in which each rank opens them; windows live as long as anybody holds the
meeting, so a peer may still write to a rank that has closed; waits end at their deadline.
"""

from __future__ import annotations

import threading
import weakref

import torch

from deepinfer.hal import Device
from deepinfer.ops.deep_ep.local import LocalGroup
from deepinfer.ops.deep_ep.transport import Deadline, timed_out

OPEN, CLOSED, FAILED = "open", "closed its buffer", "gave up after an error"


class Meeting:
    """One buffer's ranks."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.windows: list[torch.Tensor | None] = [None] * size
        self.devices: list[Device | None] = [None] * size
        self.state = [OPEN] * size
        self._posted: list[dict[int, list[int]]] = [{} for _ in range(size)]

    def make_window(self, device: Device, nbytes: int) -> torch.Tensor:
        """A rank's window, zeroed: memory of its device."""
        window = device.empty((nbytes,), torch.uint8).zero_()
        device.current_stream().synchronize()
        return window

    def close(self) -> None:
        """Nothing to give back: windows live as long as anybody holds the meeting."""

    def arrive(self, rank: int, device: Device, window: torch.Tensor, deadline: Deadline) -> list[torch.Tensor]:
        """Everybody's windows, once all are there and `device` reaches the devices they lie on."""
        with self.changed:
            self.windows[rank], self.devices[rank] = window, device
            self.changed.notify_all()
            self.changed.wait_for(lambda: None not in self.windows, deadline.remaining)
            missing = [peer for peer, found in enumerate(self.windows) if found is None]
            if missing:
                raise timed_out("hello", rank, deadline, missing)
            for other in self.devices:
                if other is not None and other is not device:
                    device.enable_peer(other)
            return [found for found in self.windows if found is not None]

    def post(self, rank: int, epoch: int, words: list[int]) -> None:
        """Tell that `rank` has enqueued its push of exchange `epoch`, which its header describes with `words`."""
        with self.changed:
            self._posted[rank].pop(epoch - 2, None)  # all have seen it, or they had not posted epoch - 1
            self._posted[rank][epoch] = words
            self.changed.notify_all()

    def posted(self, peer: int, epoch: int) -> list[int] | None:
        """What `peer` posted for `epoch`, or None while it has not; `changed` is held."""
        return self._posted[peer].get(epoch)

    def leave(self, rank: int, state: str) -> None:
        """Let waiting peers know; the first reason stays."""
        with self.changed:
            if self.state[rank] is OPEN:
                self.state[rank] = state
            self.changed.notify_all()

    def left(self, peer: int) -> str:
        """Why `peer` will send nothing any more, or ""."""
        return "" if self.state[peer] is OPEN else self.state[peer]


class _Meetings:
    """The meetings of one group by number, and how many each rank has joined."""

    def __init__(self, size: int) -> None:
        self.joined = [0] * size
        self.open: weakref.WeakValueDictionary[int, Meeting] = weakref.WeakValueDictionary()


_lock = threading.Lock()
_groups: weakref.WeakKeyDictionary[LocalGroup, _Meetings] = weakref.WeakKeyDictionary()


def join(group: LocalGroup, rank: int) -> Meeting:
    """The meeting of this rank's next buffer."""
    with _lock:
        known = _groups.setdefault(group, _Meetings(group.size))
        number = known.joined[rank]
        known.joined[rank] += 1
        meeting = known.open.get(number)
        if meeting is None:
            meeting = known.open[number] = Meeting(group.size)
        return meeting
