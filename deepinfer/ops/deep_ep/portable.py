"""Dispatch and combine composed from three local ops and `Transport.exchange`.

    source rank                                                         destination rank
    slots -> send_plan -> rows by destination --exchange--> rows by (source, token) -> [expert_layout -> rows by expert]
    bias, rows by slot -> reduce -> tokens <--exchange-- [reduce over the rank's slots] <- results

Invariants: every order below is fixed by (rank, token, slot), so results do not depend on timing; bits follow the
contract of `deep_ep.reduce`. Counts of rows are read on the host here; a fused transport keeps them on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_ep.expert_layout import ExpertLayout
from deepinfer.ops.deep_ep.geometry import Geometry, expert_capacity
from deepinfer.ops.deep_ep.reduce import Reduce
from deepinfer.ops.deep_ep.rows import Rows, format_code, from_bytes, rebuild, tensors, to_bytes
from deepinfer.ops.deep_ep.send_plan import SendPlan
from deepinfer.ops.deep_ep.transport import Deadline, Header, Incoming, Outgoing, Transport, split_rows
from deepinfer.registry import Op, get_spec

_send_plan = Op(get_spec(SendPlan.name))
_expert_layout = Op(get_spec(ExpertLayout.name))
_reduce = Op(get_spec(Reduce.name))


@dataclass(frozen=True)
class DispatchCall:
    """A checked dispatch: rows, slots [T,K] int32 (-1 unused), weights [T,K] f32, and how the result shall lie.

    `placement` is the digest that ranks compare; `out` holds the caller's capacity-sized rows or None.
    """

    x: Rows
    slots: torch.Tensor
    weights: torch.Tensor
    layout: str
    alignment: int
    sync: bool
    placement: int
    out: Rows | None


@dataclass(frozen=True)
class Delivery:
    """Result of a dispatch on the receiving side (row numbers int32, all on the device).

    Attributes:
        x: rows of the call's format; exactly the valid ones with sync, else the capacity.
        ids: local expert per slot [rows,K] ("tokens") or per row [rows] ("experts"), -1 = none.
        weights: like `ids`; 0 where the id is -1.
        starts, counts: groups of rows by local expert [L]; starts is None in layout "tokens".
        total: [1] valid rows. num_rows: the same on the host, None without sync.
        state: what the transport needs to send results back.
    """

    x: Rows
    ids: torch.Tensor
    weights: torch.Tensor
    starts: torch.Tensor | None
    counts: torch.Tensor
    total: torch.Tensor
    num_rows: int | None
    state: Any


@dataclass(frozen=True)
class CombineCall:
    """A checked combine: y and weights by row of the delivery with this `state`, bias [T,H] and out [T,H] or None."""

    y: torch.Tensor
    state: Any
    layout: str
    weights: torch.Tensor | None
    bias: torch.Tensor | None
    by_slot: bool
    out: torch.Tensor | None


@dataclass(frozen=True)
class _Return:
    """Portable state of a handle: return addresses at the source, and at the destination who sent which row."""

    rank_row: torch.Tensor
    slot_row: torch.Tensor
    sent: tuple[int, ...]
    sent_slots: tuple[int, ...]
    received: tuple[int, ...]
    row_of: torch.Tensor


@dataclass(frozen=True)
class _Received:
    """Rows by (source rank, token): payload, local ids [N,K] (-1 = elsewhere) and weights [N,K] (0 there)."""

    parts: list[torch.Tensor]
    ids: torch.Tensor
    weights: torch.Tensor


_Back = Callable[[torch.Tensor], _Return]


def dispatch(transport: Transport, call: DispatchCall, deadline: Deadline) -> Delivery:
    """Send rows, then lay out what arrived."""
    geometry = transport.geometry
    counts, tokens, rank_row, slot_counts, slot_row = _send_plan(call.slots, geometry.size, geometry.local_slots)
    sent = tuple(counts.tolist())
    payload = [to_bytes(part) for part in tensors(call.x)]
    meta = to_bytes(torch.cat((call.slots, call.weights.contiguous().view(torch.int32)), dim=1))
    header = Header("dispatch", (("rows' format", format_code(call.x)), ("placement", call.placement)))
    arrived = transport.exchange(Outgoing(header, sent, (*payload, meta), tokens[: sum(sent)].long()), deadline)
    got = _open(arrived, call, geometry)
    back = partial(_Return, rank_row, slot_row, sent, tuple(slot_counts.tolist()), arrived.counts)
    capacity = geometry.row_capacity(call.layout, call.alignment)
    return (_by_expert if call.layout == "experts" else _by_token)(call, capacity, geometry.local_slots, got, back)


def _open(arrived: Incoming, call: DispatchCall, geometry: Geometry) -> _Received:
    """Give the planes their types back and number experts locally."""
    lanes = call.slots.shape[1]
    *payload, meta_bytes = arrived.planes
    parts = [from_bytes(plane, part.dtype) for plane, part in zip(payload, tensors(call.x), strict=True)]
    meta = from_bytes(meta_bytes, torch.int32)
    ids = meta[:, :lanes] - geometry.rank * geometry.local_slots
    here = (ids >= 0) & (ids < geometry.local_slots)
    weights = meta[:, lanes:].contiguous().view(torch.float32)
    return _Received(parts, torch.where(here, ids, -1), torch.where(here, weights, 0.0))


def _by_token(call: DispatchCall, capacity: int, local: int, got: _Received, back: _Back) -> Delivery:
    rows = got.ids.shape[0]
    flat = torch.where(got.ids >= 0, got.ids, local).reshape(-1).long()
    counts = flat.new_zeros(local + 1).scatter_add_(0, flat, torch.ones_like(flat))[:local].to(torch.int32)
    state = back(torch.arange(rows, dtype=torch.int32, device=flat.device).unsqueeze(1))
    total = torch.tensor([rows], dtype=torch.int32, device=flat.device)
    if call.sync:
        return Delivery(rebuild(call.x, got.parts), got.ids, got.weights, None, counts, total, rows, state)
    results = _capacity_rows(call, capacity)
    for result, part in zip(results, got.parts, strict=True):
        result[:rows] = part
    lanes = got.ids.shape[1]
    ids = torch.cat((got.ids, got.ids.new_full((capacity - rows, lanes), -1)))
    weights = torch.cat((got.weights, got.weights.new_zeros((capacity - rows, lanes))))
    return Delivery(rebuild(call.x, results), ids, weights, None, counts, total, None, state)


def _by_expert(call: DispatchCall, capacity: int, local: int, got: _Received, back: _Back) -> Delivery:
    if call.sync:
        capacity = expert_capacity(got.ids.shape[0], got.ids.shape[1], local, call.alignment)
    starts, counts, total, row_of, source = _expert_layout(got.ids, local, call.alignment, capacity)
    valid = int(total)
    results = _capacity_rows(call, valid if call.sync else capacity)
    _fill(results, got, source[:valid].long())
    kept = source[:valid] if call.sync else source
    pairs = got.ids.numel()
    place = torch.where(kept < 0, pairs, kept).long()
    ids = torch.cat((got.ids.reshape(-1), got.ids.new_full((1,), -1)))[place]
    weights = torch.cat((got.weights.reshape(-1), got.weights.new_zeros(1)))[place]
    x, num_rows = rebuild(call.x, results), valid if call.sync else None
    return Delivery(x, ids, weights, starts, counts, total, num_rows, back(row_of))


def _fill(results: list[torch.Tensor], got: _Received, pair: torch.Tensor) -> None:
    """Write the row of each pair, and zero bytes where there is none (pair < 0)."""
    gaps = (pair < 0).nonzero().reshape(-1)
    row = pair.clamp(min=0) // max(got.ids.shape[1], 1)
    for result, part in zip(results, got.parts, strict=True):
        if row.numel() and part.shape[1]:
            target = to_bytes(result[: row.numel()])
            torch.index_select(to_bytes(part), 0, row, out=target)
            target.index_fill_(0, gaps, 0)


def _capacity_rows(call: DispatchCall, capacity: int) -> list[torch.Tensor]:
    """The caller's tensors, or new ones, of `capacity` rows."""
    if call.out is not None:
        return list(tensors(call.out))
    return [part.new_empty((capacity, part.shape[1])) for part in tensors(call.x)]


def combine(transport: Transport, call: CombineCall, deadline: Deadline) -> torch.Tensor:
    """Send results back, summed per rank or slot by slot, and add them at the source."""
    back: _Return = call.state
    header = Header("combine", (("reduce (0 = ranks, 1 = slots)", int(call.by_slot)), ("dtype", format_code(call.y))))
    if call.by_slot:
        out, expected, address = _slot_rows(call, back, header), back.sent_slots, back.slot_row
    else:
        out, expected, address = _rank_rows(call, back, header), back.sent, back.rank_row
    arrived = transport.exchange(out, deadline)
    if arrived.counts != expected:
        raise InvalidArgument(
            f"deep_ep.combine: handle: got {list(arrived.counts)} rows back from the ranks, must be {list(expected)} "
            "for this handle; all ranks must combine the same dispatch"
        )
    rows = from_bytes(arrived.planes[0], call.y.dtype)
    weights = None
    if len(arrived.planes) > 1:
        weights = from_bytes(arrived.planes[1], torch.float32).reshape(-1)
    (y,) = _reduce(rows, address, weights, call.bias, call.y.dtype, out=None if call.out is None else (call.out,))
    return y


def _rank_rows(call: CombineCall, back: _Return, header: Header) -> Outgoing:
    """One row per row received: its slots here added in order. A lone unweighted row crosses as it is."""
    rows = call.y
    if call.layout == "experts" or call.weights is not None:
        (rows,) = _reduce(call.y, back.row_of, call.weights, None, call.y.dtype)
    index = torch.arange(sum(back.received), device=rows.device)
    return Outgoing(header, back.received, (to_bytes(rows),), index)


def _slot_rows(call: CombineCall, back: _Return, header: Header) -> Outgoing:
    """One row per (token, slot), with its weight: the source multiplies, so the product is never rounded to y's dtype.

    A plane of weights is always there, so that ranks with and without weights understand each other.
    """
    used = back.row_of >= 0
    index = back.row_of[used].long()
    per_token = used.sum(1)
    counts = tuple(int(part.sum()) for part in split_rows(per_token, back.received))
    weights = torch.ones(call.y.shape[0], device=call.y.device) if call.weights is None else call.weights
    return Outgoing(header, counts, (to_bytes(call.y), to_bytes(weights.unsqueeze(1))), index)
