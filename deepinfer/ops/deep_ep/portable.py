"""Dispatch and combine composed from three local ops and `Transport.exchange`.

    source rank                                                         destination rank
    slots -> send_plan -> rows by destination --exchange--> rows by (source, token) -> [expert_layout -> rows by expert]
    bias, rows by slot -> reduce -> tokens <--exchange-- [reduce over the rank's slots] <- results

Invariants: every order below is fixed by (rank, token, slot), so results do not depend on timing; bits follow the
contract of `deep_ep.reduce`. Counts of rows are read on the host with sync=True, and where they lie in host memory
anyway (`Transport.host_counts`); elsewhere sync=False works without them (`unread`), at no cost in rows where the
transport takes counts on the device (`Transport.device_counts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from deepinfer.ops.deep_ep import unread
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
_Counts = tuple[int, ...] | torch.Tensor  # on the host, or [R] on the device


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
    """Portable state of a handle: return addresses at the source, and at the destination who sent which row.

    `number` counts the buffer's dispatches. `packed`: with reduce="slots" one row comes back per used slot; else K per
    row sent.
    """

    number: int
    rank_row: torch.Tensor
    slot_row: torch.Tensor
    packed: bool
    received: _Counts
    row_of: torch.Tensor


@dataclass(frozen=True)
class _Received:
    """Rows by (source rank, token): payload, local ids [N,K] (-1 = elsewhere) and weights [N,K] (0 there).

    Rows of a source that did not know where they go may have no slot here.
    """

    parts: list[torch.Tensor]
    ids: torch.Tensor
    weights: torch.Tensor


_Back = Callable[..., _Return]  # (row_of=...)


def dispatch(transport: Transport, call: DispatchCall, deadline: Deadline) -> Delivery:
    """Send rows, then lay out what arrived."""
    geometry = transport.geometry
    transport.dispatches += 1
    sent, index, back = _plan(transport, call)
    payload = [to_bytes(part) for part in tensors(call.x)]
    meta = to_bytes(torch.cat((call.slots, call.weights.contiguous().view(torch.int32)), dim=1))
    header = Header("dispatch", (("rows' format", format_code(call.x)), ("placement", call.placement)))
    arrived = transport.exchange(_outgoing(header, sent, (*payload, meta), index, geometry.token_rows), deadline)
    got = _open(arrived, call, geometry)
    state = partial(replace, back, received=_counts(arrived))
    capacity = geometry.row_capacity(call.layout, call.alignment)
    known = call.sync or transport.host_counts
    if call.layout == "experts":
        return _by_expert(call, capacity, geometry.local_slots, got, state, known)
    return _by_token(call, capacity, geometry.local_slots, got, state, known)


def _plan(transport: Transport, call: DispatchCall) -> tuple[_Counts, torch.Tensor, _Return]:
    """Rows for each rank, which token stands in each, and where results will return; what is received is not known."""
    local, ranks = transport.geometry.local_slots, transport.geometry.size
    tokens = call.slots.shape[0]
    counts, token, rank_row, _, slot_row = _send_plan(call.slots, ranks, local)
    number, packed = transport.dispatches, transport.host_counts or transport.device_counts
    if transport.device_counts and not call.sync:
        return counts, token.long(), _Return(number, rank_row, slot_row, packed, (), slot_row)
    sent: tuple[int, ...]
    if packed or call.sync:
        sent = tuple(counts.tolist())
        index = token[: sum(sent)].long()
    else:
        sent, index = (tokens,) * ranks, torch.arange(tokens, device=token.device).repeat(ranks)
        rank_row = unread.padded_rank_row(call.slots, rank_row, local)
    if not packed:
        slot_row = unread.lane_rows(call.slots, rank_row, slot_row, local)
    return sent, index, _Return(number, rank_row, slot_row, packed, (), slot_row)


def _open(arrived: Incoming, call: DispatchCall, geometry: Geometry) -> _Received:
    """Give the planes their types back and number experts locally."""
    lanes = call.slots.shape[1]
    *payload, meta_bytes = arrived.planes
    parts = [from_bytes(plane, part.dtype) for plane, part in zip(payload, tensors(call.x), strict=True)]
    meta = from_bytes(meta_bytes, torch.int32)
    ids = meta[:, :lanes] - geometry.rank * geometry.local_slots
    here = (ids >= 0) & (ids < geometry.local_slots)
    if arrived.device_counts is not None:
        here &= (torch.arange(len(ids), device=ids.device) < arrived.device_counts.sum())[:, None]
    weights = meta[:, lanes:].contiguous().view(torch.float32)
    return _Received(parts, torch.where(here, ids, -1), torch.where(here, weights, 0.0))


def _by_token(call: DispatchCall, capacity: int, local: int, got: _Received, back: _Back, known: bool) -> Delivery:
    flat = torch.where(got.ids >= 0, got.ids, local).reshape(-1).long()
    counts = flat.new_zeros(local + 1).scatter_add_(0, flat, torch.ones_like(flat))[:local].to(torch.int32)
    present = (got.ids >= 0).any(1)
    total = present.sum(dtype=torch.int32).reshape(1)
    if not known:
        return _by_token_unread(call, capacity, got, back, counts, total)
    row_of = torch.arange(len(present), dtype=torch.int32, device=flat.device)
    if not bool(present.all()):
        kept = present.nonzero().reshape(-1)
        row_of = unread.compacted(present, len(present))[0]
        parts = [from_bytes(to_bytes(part).index_select(0, kept), part.dtype) for part in got.parts]
        got = _Received(parts, got.ids[kept], got.weights[kept])
    rows, state = got.ids.shape[0], back(row_of=row_of.unsqueeze(1))
    if call.sync:
        return Delivery(rebuild(call.x, got.parts), got.ids, got.weights, None, counts, total, rows, state)
    results = _capacity_rows(call, capacity)
    for result, part in zip(results, got.parts, strict=True):
        result[:rows] = part
    lanes = got.ids.shape[1]
    ids = torch.cat((got.ids, got.ids.new_full((capacity - rows, lanes), -1)))
    weights = torch.cat((got.weights, got.weights.new_zeros((capacity - rows, lanes))))
    return Delivery(rebuild(call.x, results), ids, weights, None, counts, total, None, state)


def _by_token_unread(
    call: DispatchCall, capacity: int, got: _Received, back: _Back, counts: torch.Tensor, total: torch.Tensor
) -> Delivery:
    row_of, source = unread.compacted((got.ids >= 0).any(1), capacity)
    results, none = _capacity_rows(call, capacity), source < 0
    unread.write_rows(results, got.parts, source, ~none)
    place = torch.where(none, got.ids.shape[0], source)
    ids = torch.cat((got.ids, got.ids.new_full((1, got.ids.shape[1]), -1)))[place]
    weights = torch.cat((got.weights, got.weights.new_zeros((1, got.ids.shape[1]))))[place]
    state = back(row_of=row_of.unsqueeze(1))
    return Delivery(rebuild(call.x, results), ids, weights, None, counts, total, None, state)


def _by_expert(call: DispatchCall, capacity: int, local: int, got: _Received, back: _Back, known: bool) -> Delivery:
    if call.sync:
        capacity = expert_capacity(got.ids.shape[0], got.ids.shape[1], local, call.alignment)
    starts, counts, total, row_of, source = _expert_layout(got.ids, local, call.alignment, capacity)
    valid = int(total) if known else capacity
    results = _capacity_rows(call, valid if call.sync else capacity)
    if known:
        _fill(results, got, source[:valid].long())
    else:
        row = torch.where(source < 0, -1, source // max(got.ids.shape[1], 1)).long()
        unread.write_rows(results, got.parts, row, torch.arange(capacity, device=row.device) < total)
    kept = source[:valid] if call.sync else source
    pairs = got.ids.numel()
    place = torch.where(kept < 0, pairs, kept).long()
    ids = torch.cat((got.ids.reshape(-1), got.ids.new_full((1,), -1)))[place]
    weights = torch.cat((got.weights.reshape(-1), got.weights.new_zeros(1)))[place]
    x, num_rows = rebuild(call.x, results), valid if call.sync else None
    return Delivery(x, ids, weights, starts, counts, total, num_rows, back(row_of=row_of))


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
    summed = ("reduce (0 = ranks, 1 = slots)", int(call.by_slot))
    number = ("number of the handle's dispatch", back.number)
    header = Header("combine", (number, summed, ("dtype", format_code(call.y))))
    out = _slot_rows(call, back, header) if call.by_slot else _rank_rows(call, back, header)
    address = back.slot_row if call.by_slot else back.rank_row
    arrived = transport.exchange(replace(out, room=address.numel()), deadline)
    rows = from_bytes(arrived.planes[0], call.y.dtype)
    weights = None
    if len(arrived.planes) > 1:
        weights = from_bytes(arrived.planes[1], torch.float32).reshape(-1)
    (y,) = _reduce(rows, address, weights, call.bias, call.y.dtype, out=None if call.out is None else (call.out,))
    return y


def _outgoing(
    header: Header, counts: _Counts, planes: tuple[torch.Tensor, ...], index: torch.Tensor, room: int = 0
) -> Outgoing:
    if isinstance(counts, torch.Tensor):
        return Outgoing(header, (), planes, index, counts, room)
    return Outgoing(header, counts, planes, index)


def _counts(arrived: Incoming) -> _Counts:
    return arrived.counts if arrived.device_counts is None else arrived.device_counts


def _rank_rows(call: CombineCall, back: _Return, header: Header) -> Outgoing:
    """One row per row received: its slots here added in order. A lone unweighted row crosses as it is."""
    index = torch.arange(back.row_of.shape[0], device=call.y.device)
    if call.layout == "experts" or call.weights is not None:
        (rows,) = _reduce(call.y, back.row_of, call.weights, None, call.y.dtype)
    else:
        rows, index = _one_or_more(call.y), back.row_of[:, 0].long().clamp(min=0)
    return _outgoing(header, back.received, (to_bytes(rows),), index)


def _one_or_more(rows: torch.Tensor) -> torch.Tensor:
    """`rows`, or a row of zeros where there is none: what rows that nobody will look at may be copied from."""
    return rows if rows.shape[0] else rows.new_zeros((1, *rows.shape[1:]))


def _slot_rows(call: CombineCall, back: _Return, header: Header) -> Outgoing:
    """One row per (token, slot), with its weight: the source multiplies, so the product is never rounded to y's dtype.

    A plane of weights is always there, so that ranks with and without weights understand each other.
    """
    weights = call.weights
    if weights is None:
        weights = torch.ones(call.y.shape[0], dtype=torch.float32, device=call.y.device)
    planes = (to_bytes(_one_or_more(call.y)), to_bytes(_one_or_more(weights.unsqueeze(1))))
    if isinstance(back.received, torch.Tensor):
        slots, index = unread.used_slots(back.row_of, back.received)
        return _outgoing(header, slots, planes, index)
    if not back.packed:  # all lanes of each row, used or not
        index = back.row_of.reshape(-1).long().clamp(min=0)
        return Outgoing(header, tuple(n * back.row_of.shape[1] for n in back.received), planes, index)
    used = back.row_of >= 0
    per_token = used.sum(1)
    counts = tuple(int(part.sum()) for part in split_rows(per_token, back.received))
    return Outgoing(header, counts, planes, back.row_of[used].long())
