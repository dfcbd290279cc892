"""Ranks as threads of one process: `LocalGroup` and its transport, on any kind of device.

Invariants: a rank's thread is bound to its number and its device; rows are gathered by the sender before they are
posted, so nobody reads memory that its owner may change; messages of a pair of ranks are taken in the order posted.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.errors import CommTimeout, InvalidArgument, invalid
from deepinfer.hal.current import current_device, use_backend
from deepinfer.hal.current import device as open_device
from deepinfer.hal.device import Device
from deepinfer.hal.types import YES, Support
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.transport import (
    Deadline,
    Incoming,
    Outgoing,
    Transport,
    TransportFactory,
    split_rows,
    timed_out,
    verify,
)

_bound: ContextVar[tuple[LocalGroup, int] | None] = ContextVar("deepinfer_local_rank", default=None)
OPEN, CLOSED, FAILED = "open", "closed its buffer", "gave up after an error"


@dataclass(frozen=True)
class Outcome:
    """What one rank's function did: `value`, or the `error` it raised."""

    value: Any = None
    error: BaseException | None = None


class LocalGroup:
    """`size` ranks in this process, one thread each.

    Args:
        size: number of ranks, >= 1.
        devices: one device (or its specification) per rank, or None: all on the current device.

    >>> LocalGroup(3).run(lambda rank: rank * rank)
    [0, 1, 4]
    """

    def __init__(self, size: int, devices: Sequence[str | Device] | None = None) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise invalid("LocalGroup: size", size, "must be an integer >= 1", nearest=1)
        chosen: list[str | Device] = [current_device()] * size if devices is None else list(devices)
        if len(chosen) != size:
            raise invalid("LocalGroup: devices", len(chosen), f"must name one device for each of {size} ranks")
        self.size = size
        self.devices = chosen
        self._lock = threading.Lock()
        self._boxes: dict[int, _Mailbox] = {}
        self._opened = [0] * size

    @property
    def rank(self) -> int:
        """The rank that the calling thread is bound to."""
        bound = _bound.get()
        if bound is None or bound[0] is not self:
            raise InvalidArgument(
                "LocalGroup: this thread is bound to no rank of the group; call inside LocalGroup.run or .bind"
            )
        return bound[1]

    def in_host_memory(self) -> bool:
        """Whether the tensors of all ranks lie in host memory."""
        opened = (open_device(entry) if isinstance(entry, str) else entry for entry in self.devices)
        return all(entry.torch_device.type == "cpu" for entry in opened)

    @contextlib.contextmanager
    def bind(self, rank: int) -> Iterator[Device]:
        """Make the calling thread rank `rank`, on that rank's device, inside the block."""
        if not 0 <= rank < self.size:
            raise invalid("LocalGroup.bind: rank", rank, f"must be in [0, {self.size})")
        token = _bound.set((self, rank))
        try:
            with use_backend(self.devices[rank]) as device:
                yield device
        finally:
            _bound.reset(token)

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[Outcome]:
        """Call `function(rank, *args)` on a thread per rank; what each returned or raised, in rank order."""
        found = [Outcome()] * self.size

        def work(rank: int) -> None:
            try:
                with self.bind(rank):
                    found[rank] = Outcome(value=function(rank, *args))
            except BaseException as error:  # handed to the caller, whatever it is
                found[rank] = Outcome(error=error)

        # A copy of the caller's context each, so that policies such as `fallback("error")` hold on the ranks too.
        threads = [
            threading.Thread(target=copy_context().run, args=(work, rank), name=f"deepinfer-rank-{rank}")
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """As `outcomes`, but returns the values.

        Raises:
            The first error that is not a CommTimeout (those are mostly its consequence), else the first; the errors
            of other ranks are added to it as notes.
        """
        found = self.outcomes(function, *args)
        failed = [(rank, entry.error) for rank, entry in enumerate(found) if entry.error is not None]
        if not failed:
            return [entry.value for entry in found]
        rank, error = min(failed, key=lambda item: (isinstance(item[1], CommTimeout), item[0]))
        error.add_note(f"raised on rank {rank} of {self.size}")
        for other, cause in failed:
            if other != rank:
                error.add_note(f"rank {other}: {type(cause).__name__}: {cause}")
        raise error

    def mailbox(self, rank: int) -> _Mailbox:
        """The next buffer's mailbox as `rank` opens it: the n-th buffer of every rank shares the n-th mailbox."""
        with self._lock:
            number = self._opened[rank]
            self._opened[rank] += 1
            box = self._boxes.setdefault(number, _Mailbox(self.size))
            if min(self._opened) > number:
                del self._boxes[number]  # all ranks have it; it lives as long as their buffers
            return box


class _Mailbox:
    """Messages between the ranks of one buffer. All fields are guarded by `changed`."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.queues: dict[tuple[int, int], deque[_Message]] = {
            (source, target): deque() for source in range(size) for target in range(size)
        }
        self.state = [OPEN] * size


@dataclass(frozen=True)
class _Message:
    words: list[int]
    count: int
    planes: tuple[torch.Tensor, ...]


class LocalTransport(Transport):
    """Hands gathered rows over by reference; the receiver copies them into its own memory."""

    name = "local"

    def __init__(self, geometry: Geometry, device: Device, box: _Mailbox, host_counts: bool) -> None:
        super().__init__(geometry, device, host_counts=host_counts)
        self._box = box

    def exchange(self, out: Outgoing, deadline: Deadline) -> Incoming:
        self._post(out)
        operation = out.header.operation
        messages = [self._take(peer, operation, deadline) for peer in range(self.geometry.size)]
        for peer, message in enumerate(messages):
            verify(self.geometry.rank, out.header, peer, message.words)
        planes = tuple(self._join([m.planes[i] for m in messages], plane) for i, plane in enumerate(out.planes))
        # The senders' tensors are freed with `messages`; their memory must not be reused before the copies are done.
        self.device.current_stream().synchronize()
        return Incoming(tuple(message.count for message in messages), planes)

    def _post(self, out: Outgoing) -> None:
        parts = [
            tuple(plane.index_select(0, index) for plane in out.planes) for index in split_rows(out.index, out.counts)
        ]
        # Peers read these tensors from other streams, so they must be complete before they are posted.
        self.device.current_stream().synchronize()
        with self._box.changed:
            for peer, planes in enumerate(parts):
                message = _Message(out.header.words(), out.counts[peer], planes)
                self._box.queues[self.geometry.rank, peer].append(message)
            self._box.changed.notify_all()

    def _take(self, peer: int, operation: str, deadline: Deadline) -> _Message:
        box, rank = self._box, self.geometry.rank
        with box.changed:
            box.changed.wait_for(lambda: box.queues[peer, rank] or box.state[peer] is not OPEN, deadline.remaining)
            if box.queues[peer, rank]:
                return box.queues[peer, rank].popleft()
            waiting = range(self.geometry.size)
            if box.state[peer] is not OPEN:
                raise timed_out(operation, rank, deadline, [peer], box.state[peer])
            missing = [other for other in waiting if not box.queues[other, rank] and other >= peer]
            raise timed_out(operation, rank, deadline, missing)

    def _join(self, parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        total = sum(part.shape[0] for part in parts)
        joined = like.new_empty((total, like.shape[1]))
        if joined.numel():
            torch.cat([part.to(like.device) for part in parts], out=joined)
        return joined

    def _leave(self, state: str) -> None:
        with self._box.changed:
            if self._box.state[self.geometry.rank] is OPEN:
                self._box.state[self.geometry.rank] = state
            for peer in range(self.geometry.size):
                self._box.queues[peer, self.geometry.rank].clear()
            self._box.changed.notify_all()

    def abort(self) -> None:
        self._leave(FAILED)

    def close(self) -> None:
        self._leave(CLOSED)


class LocalFactory(TransportFactory):
    """Connects the ranks of a LocalGroup; part of the core because it needs no backend."""

    name = "local"

    def supports(self, group: Any, geometry: Geometry, device: Device) -> Support:
        return YES if isinstance(group, LocalGroup) else Support.no("it joins only the ranks of a LocalGroup")

    def open(self, group: Any, geometry: Geometry, device: Device, timeout: float) -> Transport:
        return LocalTransport(geometry, device, group.mailbox(geometry.rank), group.in_host_memory())

    def size_hint(self, geometry: Geometry) -> int:
        return 0
