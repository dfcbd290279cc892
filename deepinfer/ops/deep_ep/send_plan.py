"""Contract of `deep_ep.send_plan`: from routed slots to which token goes to which rank, and where its results return.

Rows are sent once per (token, destination rank), in the order (destination, token). Results come back either one per
row sent or one per (token, slot) in the order (destination, token, slot); the plan holds both return addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import checks
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class SendPlan(OpSpec):
    """Routing plan of one source rank.

    slots [T,K] int32 | int64: slot number rank * slots_per_rank + place, anything outside [0, ranks * slots_per_rank)
    is unused. Returns, all int32:

    - counts [R]: rows sent to each rank; a token counts once per rank;
    - tokens [T * min(K,R)]: token of each row sent, ordered by (rank, token), -1 after the last;
    - rank_row [T,K]: at the last slot of a token on a rank, the row sent there; -1 elsewhere;
    - slot_counts [R]: used slots per rank;
    - slot_row [T,K]: number of a used slot in the order (rank, token, slot), or -1.
    """

    name = "deep_ep.send_plan"
    params = (Param("slots"), Param("ranks", Kind.INT), Param("slots_per_rank", Kind.INT))
    returns = ("counts", "tokens", "rank_row", "slot_counts", "slot_row")

    def check(self, call: Call) -> None:
        checks.rank(self.name, "slots", call["slots"], 2, "[T,K]")
        checks.dtype(self.name, "slots", call["slots"], checks.INDEX_DTYPES)
        checks.at_least(self.name, "ranks", call["ranks"], 1)
        checks.between(self.name, "slots_per_rank", call["slots_per_rank"], 0, ((1 << 63) - 1) // call["ranks"])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        tokens, lanes = call["slots"].shape
        ranks = call["ranks"]
        shapes = ((ranks,), (tokens * min(lanes, ranks),), (tokens, lanes), (ranks,), (tokens, lanes))
        return tuple(TensorMeta.dense(shape, torch.int32, call.device) for shape in shapes)

    def reference(self, args: Args) -> Tensors:
        slots, ranks, per = args["slots"].tolist(), args["ranks"], args["slots_per_rank"]
        lanes = args["slots"].shape[1]
        home = [[slot // per if 0 <= slot < ranks * per else -1 for slot in row] for row in slots]
        sent = [(r, t) for r in range(ranks) for t, row in enumerate(home) if r in row]
        used = [(r, t, k) for r in range(ranks) for t, row in enumerate(home) for k, h in enumerate(row) if h == r]
        rank_row = torch.full(args["slots"].shape, -1, dtype=torch.int32)
        slot_row = rank_row.clone()
        for number, (r, t) in enumerate(sent):
            rank_row[t, max(k for k, h in enumerate(home[t]) if h == r)] = number
        for number, (_, t, k) in enumerate(used):
            slot_row[t, k] = number
        tokens = [t for _, t in sent] + [-1] * (len(slots) * min(lanes, ranks) - len(sent))
        counts = [sum(r == home_rank for home_rank, _ in sent) for r in range(ranks)]
        slot_counts = [sum(r == home_rank for home_rank, _, _ in used) for r in range(ranks)]
        return (_ints(counts), _ints(tokens), rank_row, _ints(slot_counts), slot_row)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        slots, ranks, per = args["slots"].long(), args["ranks"], args["slots_per_rank"]
        used = (slots >= 0) & (slots < ranks * per)
        home = torch.where(used, slots // max(per, 1), ranks)
        counts, tokens, rank_row = _per_rank(home, used, ranks)
        slot_counts, slot_row = _per_slot(home, used, ranks)
        found = (counts, tokens, rank_row, slot_counts, slot_row)
        return tuple(
            value.to(torch.int32) if given is None else given.copy_(value)
            for value, given in zip(found, out, strict=True)
        )

    def cost(self, call: Call) -> Cost:
        return Cost(flops=0.0, nbytes=call["slots"].nbytes * 1.0 + sum(meta.nbytes for meta in self.outputs(call)))

    def cases(self) -> Iterable[Case]:
        sizes = [(0, 2, 2, 1), (5, 0, 2, 2), (1, 1, 1, 1), (7, 3, 2, 4), (16, 8, 8, 2), (33, 6, 5, 3), (9, 4, 3, 0)]
        for tokens, lanes, ranks, per in sizes:
            for dtype in checks.INDEX_DTYPES:
                params = {"T": tokens, "top_k": lanes, "ranks": ranks, "slots_per_rank": per, "dtype": str(dtype)[6:]}
                make = partial(_make, tokens, lanes, ranks, per, dtype)
                edge = {"edge"} if 0 in (tokens, lanes, per) else set()
                yield Case(self.name, params, make, frozenset({"quick", *edge}), refs=("C43", "C44"))
        params = {"T": 4096, "top_k": 8, "ranks": 8, "slots_per_rank": 32, "dtype": "int32"}
        yield Case(self.name, params, partial(_make, 4096, 8, 8, 32, torch.int32), frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        good = partial(_make, 3, 2, 2, 2, torch.int32)
        flat = torch.zeros(3, dtype=torch.int32)
        real = torch.ones(3, 2)
        yield ErrorCase(self.name, "rank", lambda g: good(g) | {"slots": flat}, InvalidArgument, ("slots", "2 dim"))
        yield ErrorCase(self.name, "dtype", lambda g: good(g) | {"slots": real}, InvalidArgument, ("float32",))
        yield ErrorCase(self.name, "ranks", lambda g: good(g) | {"ranks": 0}, InvalidArgument, ("ranks", "0"))
        yield ErrorCase(self.name, "per", lambda g: good(g) | {"slots_per_rank": -1}, InvalidArgument, ("slots_per",))

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT


def _per_rank(home: torch.Tensor, used: torch.Tensor, ranks: int) -> Tensors:
    """counts, tokens and rank_row as int64; `home` [T,K] is the rank of a slot, `ranks` where unused."""
    tokens, lanes = home.shape
    lane = torch.arange(lanes, device=home.device).expand(tokens, lanes)
    last = home.new_full((tokens, ranks + 1), -1).scatter_reduce(1, home, lane, "amax")
    present = (last[:, :ranks] >= 0).t()
    row = (present.reshape(-1).cumsum(0) - 1).view(ranks, tokens)
    room = tokens * min(lanes, ranks)
    sent = home.new_full((room + 1,), -1)
    number = torch.arange(tokens, device=home.device).expand(ranks, tokens)
    sent[torch.where(present, row, room)] = torch.where(present, number, -1)
    padded = torch.cat((row.t(), home.new_full((tokens, 1), -1)), dim=1)
    rank_row = torch.where(used & (last.gather(1, home) == lane), padded.gather(1, home), -1)
    return present.sum(1), sent[:room], rank_row


def _per_slot(home: torch.Tensor, used: torch.Tensor, ranks: int) -> Tensors:
    """slot_counts and slot_row as int64: a stable sort by rank keeps (token, slot) order inside each rank."""
    flat = home.reshape(-1)
    order = flat.sort(stable=True).indices
    row = torch.empty_like(flat)
    row[order] = torch.arange(flat.numel(), device=flat.device)
    counts = flat.new_zeros(ranks + 1).scatter_add_(0, flat, torch.ones_like(flat))[:ranks]
    return counts, torch.where(used, row.view(home.shape), -1)


def _ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _make(
    tokens: int, lanes: int, ranks: int, per: int, dtype: torch.dtype, generator: torch.Generator
) -> dict[str, Any]:
    """Random slots; about a fifth are unused, below or beyond the range."""
    span = ranks * per
    slots = torch.randint(-2 - span // 10, span + 2 + span // 10, (tokens, lanes), generator=generator).to(dtype)
    return {"slots": slots, "ranks": ranks, "slots_per_rank": per}
