"""What carries rows between ranks: the interface that backends implement, and the checks that all of them share.

A transport is one rank's end of one buffer's connection. `exchange` is all it must do: hand a header and a number of
rows to every rank (itself included) and take theirs. `dispatch` and `combine` are whole operations with a default
composed from ops and `exchange`; a backend whose kernels push rows through mapped peer memory overrides both.

Invariants: every wait ends at its deadline with `CommTimeout` naming the ranks that did not arrive; headers are
compared before any row is read, so ranks that call different things get an error and never each other's bytes; after
any failure inside `exchange` the connection is dead (`ExpertBuffer` refuses further calls), the process is not.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.errors import CommTimeout, InvalidArgument
from deepinfer.hal.device import Device
from deepinfer.hal.types import Support
from deepinfer.ops.deep_ep.geometry import Geometry

if TYPE_CHECKING:
    from deepinfer.ops.deep_ep.portable import CombineCall, Delivery, DispatchCall

OPERATIONS = ("hello", "dispatch", "combine")


class Deadline:
    """The end of one wait, from `seconds` on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._end


@dataclass(frozen=True)
class Header:
    """What a rank is about to do. All ranks must say the same; `fields` are compared by name, at most 12 of them."""

    operation: str
    fields: tuple[tuple[str, int], ...]

    def words(self) -> list[int]:
        """As integers for the link; `decode` needs the receiver's own header for the names."""
        return [OPERATIONS.index(self.operation), *(value for _, value in self.fields)]


def verify(rank: int, own: Header, peer: int, words: Sequence[int]) -> None:
    """Raise InvalidArgument unless `peer` announced with `words` what this rank announces with `own`."""
    if words[0] != OPERATIONS.index(own.operation):
        theirs = OPERATIONS[words[0]] if 0 <= words[0] < len(OPERATIONS) else f"operation {words[0]}"
        raise InvalidArgument(
            f"deep_ep: rank {rank} calls {own.operation} while rank {peer} calls {theirs}; "
            "all ranks of a buffer must make the same calls in the same order"
        )
    for (name, mine), theirs_value in zip(own.fields, words[1:], strict=False):
        if mine != theirs_value:
            raise InvalidArgument(
                f"deep_ep.{own.operation}: {name}: got {mine} on rank {rank} and {theirs_value} on rank {peer}, "
                "must be the same on all ranks"
            )


@dataclass(frozen=True)
class Outgoing:
    """Rows for all ranks.

    Attributes:
        header: announced to every rank.
        counts: rows for each rank; they stand in this order in `index`.
        planes: uint8 [n_i, w_i], parts of a record (payload, scales, ...), all indexed alike.
        index: int64 [>= sum(counts)] row of each plane to send; entries past the sum are not looked at.
        device_counts: for transports that take them: int32 or int64 [R] in place of `counts`, never read on the host.
        room: with them, the most rows that can arrive.
    """

    header: Header
    counts: tuple[int, ...]
    planes: tuple[torch.Tensor, ...]
    index: torch.Tensor
    device_counts: torch.Tensor | None = None
    room: int = 0


@dataclass(frozen=True)
class Incoming:
    """Rows from all ranks in rank order: how many from each, and the planes uint8 [sum(counts), w_i] (own memory).

    Counts are of the kind that went out: with `device_counts` int64 [R], planes have `Outgoing.room` rows, and those
    past the sum hold anything.
    """

    counts: tuple[int, ...]
    planes: tuple[torch.Tensor, ...]
    device_counts: torch.Tensor | None = None


class Transport(abc.ABC):
    """One rank's end of one buffer's connection. Called by one thread at a time.

    Attributes:
        host_counts: the tensors of every rank lie in host memory, so counts may be read at any time. There is no
            default: on a device that would be a wait nobody sees. All ranks agree.
        device_counts: `exchange` takes and gives counts as tensors on the device, so that sync=False reads nothing and
            sends no more than sync=True.
    """

    name: str
    device_counts: bool = False

    def __init__(self, geometry: Geometry, device: Device, *, host_counts: bool) -> None:
        self.geometry, self.device, self.host_counts = geometry, device, host_counts
        self.dispatches = 0

    @abc.abstractmethod
    def exchange(self, out: Outgoing, deadline: Deadline) -> Incoming:
        """Give `out` to all ranks and return what they gave to this one.

        Raises:
            CommTimeout: a rank did not arrive in time, closed its end or died; `missing` names it.
            InvalidArgument: a rank announced something else (see `verify`).
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back this end's resources and let waiting peers know. Idempotent, waits for nobody."""

    def check(self) -> None:
        """Raise what calls that read nothing on the host could not say; may wait for the device. Here: nothing."""

    def abort(self) -> None:
        """Tell peers that this end has failed, so that they need not wait for their deadlines."""

    def dispatch(self, call: DispatchCall, deadline: Deadline) -> Delivery:
        """Whole dispatch; overridden where one kernel does it. The meaning is that of `portable.dispatch`."""
        from deepinfer.ops.deep_ep import portable

        return portable.dispatch(self, call, deadline)

    def combine(self, call: CombineCall, deadline: Deadline) -> torch.Tensor:
        """Whole combine; overridden where one kernel does it. The meaning is that of `portable.combine`."""
        from deepinfer.ops.deep_ep import portable

        return portable.combine(self, call, deadline)


class TransportFactory(abc.ABC):
    """Makes transports; what a backend returns from `ep_transports()`. `priority`: higher is tried first."""

    name: str
    priority: int = 0

    @abc.abstractmethod
    def supports(self, group: Any, geometry: Geometry, device: Device) -> Support:
        """Whether ranks of `group` on `device` can be connected, with every reason why not. Opens nothing."""

    @abc.abstractmethod
    def open(self, group: Any, geometry: Geometry, device: Device, timeout: float) -> Transport:
        """Connect this rank; all ranks call it in the same order. CommTimeout when one does not within `timeout` s."""

    def size_hint(self, geometry: Geometry) -> int:
        """Bytes of communication memory that one rank reserves."""
        return geometry.slab_bytes


def timed_out(operation: str, rank: int, deadline: Deadline, missing: Sequence[int], why: str = "") -> CommTimeout:
    """The error of a wait that ended without ranks `missing`."""
    names = ", ".join(str(peer) for peer in missing)
    ranks = f"rank{'s' if len(missing) > 1 else ''} {names}"
    cause = why or f"did not arrive within {deadline.seconds:g} s"
    return CommTimeout(f"deep_ep.{operation}: rank {rank}: {ranks} {cause}", missing)


def split_rows(tensor: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Views of the first counts[0] rows, the next counts[1] rows, ..."""
    parts, begin = [], 0
    for count in counts:
        parts.append(tensor[begin : begin + count])
        begin += count
    return parts
