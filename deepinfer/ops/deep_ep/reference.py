"""Dispatch and combine as a function from all ranks' inputs to all ranks' outputs, written to be read.

This is the meaning of Deep EP. It knows nothing of transports, counts or buffers: loops over ranks, tokens and slots
in the order that the contract names, float32 arithmetic one operation at a time. Used by tests and conformance only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.ops.deep_ep.placement import REPLICA_STRIDE, Placement
from deepinfer.ops.deep_ep.rows import Rows, rebuild, tensors


@dataclass(frozen=True)
class RankInput:
    """What one rank gives to a dispatch: x [T,H], topk_idx [T,K], topk_weights [T,K] float32."""

    x: Rows
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


@dataclass(frozen=True)
class Pair:
    """One used slot: token `token` of rank `source` wants, in slot `lane`, place `place` of rank `home`."""

    source: int
    token: int
    lane: int
    home: int
    place: int


@dataclass(frozen=True)
class RankOutput:
    """What one rank gets from a dispatch; `rows` holds for each row its pairs in slot order, none in padding."""

    x: Rows
    ids: torch.Tensor
    weights: torch.Tensor
    starts: torch.Tensor | None
    counts: torch.Tensor
    rows: list[list[Pair]]


def pairs(ranks: Sequence[RankInput], placement: Placement) -> list[Pair]:
    """All used slots in the order (source rank, token, slot)."""
    local = placement.local_slots(len(ranks))
    found = []
    for source, given in enumerate(ranks):
        for token, experts in enumerate(given.topk_idx.tolist()):
            for lane, expert in enumerate(experts):
                if 0 <= expert < placement.experts:
                    replicas = placement.replicas[expert]
                    slot = replicas[(source + REPLICA_STRIDE * token) % len(replicas)]
                    found.append(Pair(source, token, lane, slot // local, slot % local))
    return found


def dispatch(
    ranks: Sequence[RankInput], placement: Placement, layouts: Sequence[str], alignments: Sequence[int]
) -> list[RankOutput]:
    """Outputs of a dispatch on every rank; layout and alignment per rank."""
    everything = pairs(ranks, placement)
    local = placement.local_slots(len(ranks))
    outputs = []
    for home, (layout, alignment) in enumerate(zip(layouts, alignments, strict=True)):
        here = [pair for pair in everything if pair.home == home]
        make = _by_expert if layout == "experts" else _by_token
        outputs.append(make(ranks, here, local, alignment))
    return outputs


def _by_token(ranks: Sequence[RankInput], here: list[Pair], local: int, alignment: int) -> RankOutput:
    rows: list[list[Pair]] = []
    for pair in here:
        if rows and (rows[-1][0].source, rows[-1][0].token) == (pair.source, pair.token):
            rows[-1].append(pair)
        else:
            rows.append([pair])
    lanes = ranks[0].topk_idx.shape[1]
    ids = torch.full((len(rows), lanes), -1, dtype=torch.int32)
    weights = torch.zeros(len(rows), lanes)
    for number, row in enumerate(rows):
        for pair in row:
            ids[number, pair.lane] = pair.place
            weights[number, pair.lane] = ranks[pair.source].topk_weights[pair.token, pair.lane]
    return RankOutput(_gather(ranks, rows), ids, weights, None, _counts(here, local), rows)


def _by_expert(ranks: Sequence[RankInput], here: list[Pair], local: int, alignment: int) -> RankOutput:
    rows: list[list[Pair]] = []
    starts = []
    for place in range(local):
        starts.append(len(rows))
        rows += [[pair] for pair in here if pair.place == place]
        rows += [[]] * (-len(rows) % alignment)
    ids = [row[0].place if row else -1 for row in rows]
    weights = torch.zeros(len(rows))
    for number, row in enumerate(rows):
        for pair in row:
            weights[number] = ranks[pair.source].topk_weights[pair.token, pair.lane]
    return RankOutput(_gather(ranks, rows), _ints(ids), weights, _ints(starts), _counts(here, local), rows)


def _gather(ranks: Sequence[RankInput], rows: list[list[Pair]]) -> Rows:
    """The row of each entry's token; zero bytes in padding."""
    like = ranks[0].x
    results = []
    for i, part in enumerate(tensors(like)):
        result = torch.zeros((len(rows), part.shape[1]), dtype=part.dtype)
        for number, row in enumerate(rows):
            if row:
                result[number] = tensors(ranks[row[0].source].x)[i][row[0].token]
        results.append(result)
    return rebuild(like, results)


def combine(
    ranks: Sequence[RankInput],
    outputs: Sequence[RankOutput],
    ys: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor | None],
    biases: Sequence[torch.Tensor | None],
    reduce: str,
) -> list[torch.Tensor]:
    """Combined tokens of every rank; `ys[r]` are rank r's results, row by row as in `outputs[r].rows`."""
    terms: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}
    for output, y, weight in zip(outputs, ys, weights, strict=True):
        add = _per_rank if reduce == "ranks" else _per_slot
        for key, lane, term in add(output, y, weight):
            terms.setdefault(key, []).append((lane, term))
    results = []
    for source, (given, bias) in enumerate(zip(ranks, biases, strict=True)):
        tokens = given.topk_idx.shape[0]
        acc = torch.zeros(tokens, ys[source].shape[1]) if bias is None else bias.float().clone()
        for token in range(tokens):
            for _, term in sorted(terms.get((source, token), []), key=lambda entry: entry[0]):
                acc[token] = acc[token] + term
        results.append(acc.to(ys[source].dtype))
    return results


_Term = tuple[tuple[int, int], int, torch.Tensor]


def _per_slot(output: RankOutput, y: torch.Tensor, weight: torch.Tensor | None) -> list[_Term]:
    """((source, token), slot, w * y in float32) of every row."""
    return [
        ((row[0].source, row[0].token), row[0].lane, _product(y, weight, number))
        for number, row in enumerate(output.rows)
        if row
    ]


def _per_rank(output: RankOutput, y: torch.Tensor, weight: torch.Tensor | None) -> list[_Term]:
    """((source, token), last slot here, sum over the token's rows here, rounded to y's dtype)."""
    sums: dict[tuple[int, int], torch.Tensor] = {}
    last: dict[tuple[int, int], int] = {}
    placed = [(row[0].source, row[0].token, row[-1].lane, number) for number, row in enumerate(output.rows) if row]
    whole = output.starts is None and weight is None
    for source, token, lane, number in sorted(placed):
        key, term = (source, token), _product(y, weight, number)
        sums[key] = term if whole else sums.get(key, torch.zeros(y.shape[1])) + term
        last[key] = lane
    return [(key, last[key], total.to(y.dtype).float()) for key, total in sums.items()]


def _product(y: torch.Tensor, weight: torch.Tensor | None, row: int) -> torch.Tensor:
    return y[row].float() if weight is None else y[row].float() * weight[row]


def _counts(here: list[Pair], local: int) -> torch.Tensor:
    return _ints([sum(pair.place == place for pair in here) for place in range(local)])


def _ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
