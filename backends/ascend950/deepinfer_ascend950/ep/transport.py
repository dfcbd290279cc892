"""`PeerTransport`: rows pushed by kernels straight into the receiver's memory.

One exchange: enqueue the push of rows, heads and flags to all ranks; hosts tell each other that they did, and what they
call; wait for the flags in launches that poll a bounded number of times; pull the rows out of the window. Dispatch and
combine are composed from it and from the backend's own `send_plan`, `expert_layout` and `reduce`, so every byte that
moves between or inside ranks is moved by a kernel.

With counts on the device the host neither reads nor waits for the device: one launch waits for what is enqueued
already, and whoever it misses is a fault that `check` raises, or the next exchange that reads anyway.

Invariants: no launch waits without bound, so a rank that does not come costs a `CommTimeout` and never a hung device;
all launches of a buffer go to one stream in order, which the window protocol relies on.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.errors import CommTimeout, InvalidArgument
from deepinfer.hal import Cap, Device, Support
from deepinfer.hal.types import YES
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.local import LocalGroup
from deepinfer.ops.deep_ep.transport import (
    Deadline,
    Header,
    Incoming,
    Outgoing,
    Transport,
    TransportFactory,
    timed_out,
    verify,
)
from deepinfer_ascend950.ep import windows as layout
from deepinfer_ascend950.ep.meeting import CLOSED, FAILED, Meeting, join
from deepinfer_ascend950.ep.processes import ProcessMeeting, why_not
from deepinfer_ascend950.ep.windows import Windows

POLLS, PAUSE_S = 16, 0.002
# A final wait is for work that peers have enqueued already; a look at a rank's flags is some 1 us of a scalar unit.
FINAL_POLLS = 1 << 20
SOURCE = "ep_exchange"


class PeerTransport(Transport):
    """One rank's end."""

    name = "peer_memory"
    device_counts = True

    def __init__(self, geometry: Geometry, device: Device, meeting: Meeting | ProcessMeeting, timeout: float) -> None:
        super().__init__(geometry, device, host_counts=False)
        self._windows, self._meeting, self._epoch = Windows.of(geometry), meeting, 0
        self._own = meeting.make_window(device, self._windows.nbytes)
        self._all = meeting.arrive(geometry.rank, device, self._own, Deadline(timeout))
        self._table = device.to_device(torch.tensor([window.data_ptr() for window in self._all]))
        self._fault = device.empty((geometry.size + 1,), torch.int32).zero_()
        self._unread = False  # whether faults may be there that no call has raised
        self._code = device.executable(SOURCE)  # type: ignore[attr-defined]
        self._cores = min(device.props.compute_units or 1, layout.MAX_BLOCKS)

    def exchange(self, out: Outgoing, deadline: Deadline) -> Incoming:
        if out.device_counts is None:
            self.check()
        self._epoch += 1
        self._push(out)
        self._meet(out.header, deadline)
        if out.device_counts is not None:
            heads = self._wait_unread()
            return Incoming((), self._pull(out, out.room, heads), heads[:, layout.ROWS])
        heads = self._wait(out.header.operation, deadline)
        counts = tuple(self.device.to_host(heads)[:, layout.ROWS].tolist())
        return Incoming(counts, self._pull(out, sum(counts), heads))

    def check(self) -> None:
        if not self._unread:
            return
        faults = self.device.to_host(self._fault).tolist()
        self._unread = False
        if faults[-1]:
            missing = [peer for peer, epoch in enumerate(faults[:-1]) if epoch]
            names = ", ".join(map(str, missing))
            text = f"rows of ranks {names} did not arrive in exchange {faults[-1]} of the buffer, which read nothing"
            raise CommTimeout(f"deep_ep: rank {self.geometry.rank}: {text}", missing)

    def _launch(self, entry: str, blocks: int, args: list[Any]) -> None:
        grid = (max(1, min(blocks, self._cores)), 1, 1)
        self._code.launch(entry, grid, (1, 1, 1), args, stream=self.device.current_stream())

    def _push(self, out: Outgoing) -> None:
        widths = [plane.shape[1] for plane in out.planes]
        most = max(out.counts, default=0)
        room = self._windows.region // max(layout.record_bytes(widths), 1)
        if most > room:
            raise InvalidArgument(f"deep_ep.{out.header.operation}: got {most} rows for one rank, windows hold {room}")
        blocks = max(1, min(out.index.shape[0], self._cores))
        heads = self._heads(out, blocks)
        args = self._windows.push(
            self.geometry.rank, self._epoch, out.planes, out.index, heads, self._all, self._table, self._fault
        )
        self._launch("ep_push", blocks, args)

    def _heads(self, out: Outgoing, blocks: int) -> torch.Tensor:
        """What each rank is told with its rows [size, HEAD], on the device."""
        host = torch.zeros((self.geometry.size, layout.HEAD), dtype=torch.int64)
        host[:, layout.BLOCKS] = blocks
        words = torch.tensor(out.header.words())
        host[:, layout.WORDS : layout.WORDS + len(words)] = words
        if out.device_counts is None:
            host[:, layout.ROWS] = torch.tensor(out.counts)
            return self.device.to_device(host)
        heads = self.device.to_device(host)
        heads[:, layout.ROWS] = out.device_counts
        return heads

    def _meet(self, header: Header, deadline: Deadline) -> None:
        """Return once the hosts of all ranks have enqueued their push of this exchange, and say that they call this."""
        rank, meeting = self.geometry.rank, self._meeting
        meeting.post(rank, self._epoch, header.words())
        waiting = list(range(self.geometry.size))
        while waiting:
            gone = {peer: why for peer in waiting if (why := meeting.left(peer))}
            last = deadline.expired
            with meeting.changed:
                said = {peer: words for peer in waiting if (words := meeting.posted(peer, self._epoch)) is not None}
                if not said and not gone and not last:
                    meeting.changed.wait(min(PAUSE_S, deadline.remaining))
            for peer, words in said.items():
                verify(rank, header, peer, words)
            waiting = [peer for peer in waiting if peer not in said]
            for peer in waiting:  # it left before this look, so what it had to say is there
                if peer in gone:
                    raise timed_out(header.operation, rank, deadline, [peer], gone[peer])
            if waiting and last:
                raise timed_out(header.operation, rank, deadline, waiting)

    def _wait_unread(self) -> torch.Tensor:
        """Heads [size, HEAD] on the device, zeros where a rank is missed; whoever is missed is a fault."""
        rank, size = self.geometry.rank, self.geometry.size
        heads = self.device.empty((size, layout.HEAD), torch.int64).zero_()
        arrived = self.device.empty((size,), torch.int32).zero_()
        args = self._windows.wait(rank, self._epoch, self._own, arrived, heads, self._fault, FINAL_POLLS, final=True)
        self._launch("ep_wait", 1, args)
        self._unread = True
        return heads

    def _wait(self, operation: str, deadline: Deadline) -> torch.Tensor:
        """The same, once the rows of all ranks are there: looks between launches."""
        rank, size = self.geometry.rank, self.geometry.size
        heads = self.device.empty((size, layout.HEAD), torch.int64)
        arrived = self.device.empty((size,), torch.int32)
        while True:
            gone = {peer: why for peer in range(size) if (why := self._meeting.left(peer))}
            last = deadline.expired
            arrived.zero_()
            args = self._windows.wait(rank, self._epoch, self._own, arrived, heads, self._fault, POLLS)
            self._launch("ep_wait", 1, args)
            missing = [peer for peer, here in enumerate(self.device.to_host(arrived).tolist()) if not here]
            if not missing:
                return heads
            for peer in missing:  # it left before this look, so what it had to send is there
                if peer in gone:
                    raise timed_out(operation, rank, deadline, [peer], gone[peer])
            if last:
                raise timed_out(operation, rank, deadline, missing)
            with self._meeting.changed:
                self._meeting.changed.wait(min(PAUSE_S, deadline.remaining))

    def _pull(self, out: Outgoing, rows: int, heads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        planes = tuple(self.device.empty((rows, plane.shape[1]), torch.uint8) for plane in out.planes)
        if rows and any(plane.shape[1] for plane in planes):
            args = self._windows.pull(self.geometry.rank, self._epoch, self._own, planes, heads)
            self._launch("ep_pull", rows, args)
        return planes

    def abort(self) -> None:
        self._meeting.leave(self.geometry.rank, FAILED)

    def close(self) -> None:
        self._meeting.leave(self.geometry.rank, CLOSED)
        self._meeting.close()


class PeerFactory(TransportFactory):
    """Connects ranks whose devices map each other's memory: threads of a `LocalGroup`, and on simulated devices the
    processes of a gloo `ProcessGroup` on one host."""

    name = "peer_memory"
    priority = 10

    def supports(self, group: Any, geometry: Geometry, device: Device) -> Support:
        reasons = []
        if not isinstance(group, LocalGroup):
            if not device.simulated:
                text = "memory of another process is not mapped on hardware yet (the ACL calls for it were never run)"
                reasons.append(f"{text}; use a LocalGroup")
            elif why_not(group):
                reasons.append(why_not(group))
        if not device.supports(Cap.PEER_MEMORY):
            reasons.append(f"{device.spec} does not map other devices' memory")
        if geometry.size > layout.MAX_RANKS:
            reasons.append(f"{geometry.size} ranks, at most {layout.MAX_RANKS}")
        record = max(layout.dispatch_record(geometry), layout.combine_record(geometry))
        if record > layout.MAX_RECORD:
            reasons.append(f"a row with its slots and scales takes {record} bytes, records hold {layout.MAX_RECORD}")
        return Support.no(*reasons) if reasons else YES

    def open(self, group: Any, geometry: Geometry, device: Device, timeout: float) -> Transport:
        meeting = join(group, geometry.rank) if isinstance(group, LocalGroup) else ProcessMeeting(group, geometry.size)
        return PeerTransport(geometry, device, meeting, timeout)

    def size_hint(self, geometry: Geometry) -> int:
        return Windows.of(geometry).nbytes
