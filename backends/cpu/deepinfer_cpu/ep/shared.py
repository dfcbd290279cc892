"""Deep EP between processes of one host: rows are written straight into the receiver's slab.

    sender                                         receiver
    header words, fence, header number += 1  --->  sees the number, fence, reads the header, checks it
    gathers rows into a free chunk, fence,
      head += 1                              --->  sees head, fence, copies the chunk to its result, fence,
    sees the chunk free                      <---    tail += 1

A chunk holds rows a..b of all planes one after the other; both sides derive the same chunks from the count in the
header. Every rank serves all its rings in turn, so no order of ranks can block.

Invariants: a rank finishes a call only after it has seen every peer's header of that call, so nobody is more than one
call ahead and two headers per pair are enough; heads and tails only grow; the result is laid out by (source, row) and
does not depend on which chunk came first; a wait ends at its deadline, or within 0.1 s of a peer's death or close.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from deepinfer.hal.device import Device
from deepinfer.hal.types import Support
from deepinfer.ops.deep_ep.geometry import RING_DEPTH, Geometry
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
from deepinfer_cpu.ep.chunks import Send, Take, by_source
from deepinfer_cpu.ep.fence import Fence
from deepinfer_cpu.ep.rendezvous import connect
from deepinfer_cpu.ep.slab import CLOSED, FAILED, OPEN, Slab

ATTACHED, HEADER, HEAD, TAIL = range(4)
PEER_CHECK_SECONDS = 0.05
SPINS = 50
LONGEST_NAP = 1e-3
_GONE = {CLOSED: "closed its buffer", FAILED: "gave up after an error"}


class SharedTransport(Transport):
    """One rank's end; `slabs[r]` is rank r's memory."""

    name = "shared_memory"

    def __init__(self, geometry: Geometry, device: Device, slabs: list[Slab]) -> None:
        super().__init__(geometry, device, host_counts=True)
        self._slabs = slabs
        self._own = slabs[geometry.rank]
        self._peers = [rank for rank in range(geometry.size) if rank != geometry.rank]
        self._fence = Fence()
        self._call = 0
        self._heads = [0] * geometry.size
        self._tails = [0] * geometry.size

    def exchange(self, out: Outgoing, deadline: Deadline) -> Incoming:
        operation = out.header.operation
        self._announce(out)
        counts = self._meet(out, deadline)
        planes = tuple(plane.new_empty((sum(counts), plane.shape[1])) for plane in out.planes)
        rows_out = split_rows(out.index, out.counts)
        rows_in = by_source(planes, counts)
        self._to_self(out, rows_out[self.geometry.rank], rows_in[self.geometry.rank])
        sends = {peer: Send(self, peer, out.planes, rows_out[peer]) for peer in self._peers}
        takes = {peer: Take(self, peer, rows_in[peer], counts[peer]) for peer in self._peers}

        def progress() -> bool:
            moved = [job.step() for jobs in (sends, takes) for job in jobs.values()]
            return any(moved)

        def pending() -> list[int]:
            return [peer for peer in self._peers if not (sends[peer].done and takes[peer].done)]

        self._wait(operation, deadline, progress, pending)
        return Incoming(tuple(counts), planes)

    def join(self, deadline: Deadline) -> None:
        """Tell every peer that its slab is mapped here, wait until all have mapped this one, remove its name."""
        for peer in self._peers:
            slab = self._slabs[peer]
            slab.words[slab.word(self.geometry.rank, ATTACHED)] = 1
        own = self._own
        self._wait(
            "hello", deadline, lambda: False,
            lambda: [peer for peer in self._peers if not own.words[own.word(peer, ATTACHED)]],
        )
        own.unlink()

    def abort(self) -> None:
        self._leave(FAILED)

    def close(self) -> None:
        self._leave(CLOSED)
        self._own.unlink()
        for slab in self._slabs:
            slab.close()

    def _leave(self, state: int) -> None:
        if self._own.words.size and self._own.words[0] == OPEN:
            self._fence.full()
            self._own.words[0] = state

    def _announce(self, out: Outgoing) -> None:
        """Write the header and the number of rows into every peer's slab."""
        self._call += 1
        rank, words = self.geometry.rank, out.header.words()
        for peer in self._peers:
            slab = self._slabs[peer]
            target = slab.words[slab.header(rank, self._call)]
            target[: len(words) + 1] = [out.counts[peer], *words]
            self._fence.full()
            slab.words[slab.word(rank, HEADER)] = self._call

    def _meet(self, out: Outgoing, deadline: Deadline) -> list[int]:
        """Wait for every peer's header, check it; rows that each rank sends here."""
        own, length = self._own, len(out.header.words())
        self._wait(
            out.header.operation, deadline, lambda: False,
            lambda: [peer for peer in self._peers if own.words[own.word(peer, HEADER)] < self._call],
        )
        self._fence.full()
        counts = [out.counts[self.geometry.rank]] * self.geometry.size
        for peer in self._peers:
            count, *words = own.words[own.header(peer, self._call)].tolist()
            verify(self.geometry.rank, out.header, peer, words[:length])
            counts[peer] = count
        return counts

    def _to_self(self, out: Outgoing, rows: torch.Tensor, targets: list[torch.Tensor]) -> None:
        for plane, target in zip(out.planes, targets, strict=True):
            if target.numel():
                torch.index_select(plane, 0, rows, out=target)

    def _wait(
        self, operation: str, deadline: Deadline, progress: Callable[[], bool], pending: Callable[[], list[int]]
    ) -> None:
        """Run `progress` until `pending` is empty; nap in growing steps while nothing moves."""
        idle, checked = 0, time.monotonic()
        while missing := pending():
            if progress() and not deadline.expired:
                idle = 0
                continue
            idle += 1
            time.sleep(0.0 if idle < SPINS else min(LONGEST_NAP, 2e-5 * (idle - SPINS)))
            now = time.monotonic()
            if now - checked < PEER_CHECK_SECONDS and not deadline.expired:
                continue
            checked, expired = now, deadline.expired
            gone = {peer: why for peer in missing if (why := self._gone(peer))}
            self._fence.full()
            # A peer may have delivered before it left, and anything may have come since: look once more.
            moved, left = progress(), pending()
            if left and (expired or not (moved or left != missing)):
                self._give_up(operation, deadline, left, {peer: why for peer, why in gone.items() if peer in left})

    def _give_up(self, operation: str, deadline: Deadline, left: list[int], gone: dict[int, str]) -> None:
        """Raise if a rank is gone or time is over; a slow rank is waited for."""
        if gone:
            raise timed_out(operation, self.geometry.rank, deadline, list(gone), _reasons(gone))
        if deadline.expired:
            raise timed_out(operation, self.geometry.rank, deadline, left)

    def _gone(self, peer: int) -> str | None:
        """Why `peer` will not come any more, or None."""
        slab = self._slabs[peer]
        state = int(slab.words[0])
        if state != OPEN:
            return _GONE[state]
        return None if slab.owner_alive else "died (its process is gone)"

    def free(self, peer: int) -> torch.Tensor | None:
        """The next chunk of this rank's ring at `peer`, or None while all are taken."""
        slab = self._slabs[peer]
        if self._heads[peer] - int(slab.words[slab.word(self.geometry.rank, TAIL)]) >= RING_DEPTH:
            return None
        self._fence.full()
        return slab.chunk(self.geometry.rank, self._heads[peer])

    def publish(self, peer: int) -> None:
        """The chunk from `free` has been filled."""
        slab = self._slabs[peer]
        self._heads[peer] += 1
        self._fence.full()
        slab.words[slab.word(self.geometry.rank, HEAD)] = self._heads[peer]

    def arrived(self, peer: int) -> torch.Tensor | None:
        """The next chunk that `peer` has filled here, or None."""
        if int(self._own.words[self._own.word(peer, HEAD)]) <= self._tails[peer]:
            return None
        self._fence.full()
        return self._own.chunk(peer, self._tails[peer])

    def consume(self, peer: int) -> None:
        """The chunk from `arrived` has been copied."""
        self._tails[peer] += 1
        self._fence.full()
        self._own.words[self._own.word(peer, TAIL)] = self._tails[peer]


def _reasons(gone: dict[int, str]) -> str:
    """One clause for the message: all share it, or each is named."""
    if len(set(gone.values())) == 1:
        return next(iter(gone.values()))
    return "; ".join(f"{peer} {why}" for peer, why in gone.items())


class SharedFactory(TransportFactory):
    """Joins the processes of a gloo group on one host."""

    name = "shared_memory"
    priority = 10

    def supports(self, group: Any, geometry: Geometry, device: Device) -> Support:
        if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
            return Support.no("it joins the processes of a torch.distributed ProcessGroup")
        reasons = []
        if device.torch_device.type != "cpu":
            reasons.append(f"rows must lie in host memory, the device keeps them on {device.torch_device}")
        if dist.get_backend(group) != "gloo":
            reasons.append(f"ranks meet through a gloo group, this one is {dist.get_backend(group)}")
        return Support.no(*reasons)

    def open(self, group: Any, geometry: Geometry, device: Device, timeout: float) -> Transport:
        transport = SharedTransport(geometry, device, connect(group, geometry, timeout))
        try:
            transport.join(Deadline(timeout))
        except BaseException:  # an interrupt must not leave peers waiting
            transport.abort()
            transport.close()
            raise
        return transport
