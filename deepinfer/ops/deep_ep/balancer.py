"""Balancing experts over ranks: which experts get replicas, and on which rank each replica lives.

Loads are tokens per expert and step over a window. Both choices are greedy in the sum over steps of the largest load,
because a step lasts as long as its slowest rank; averages would hide that two experts peak together.

Invariants: the result is a pure function of the loads; no rank holds one expert twice if that can be avoided, which is
exactly when no expert has more replicas than there are ranks; a replica beyond the number of ranks is made only when
every expert has that many already.
"""

from __future__ import annotations

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_ep.placement import Placement


def initial_placement(experts: int, ranks: int, slots_per_rank: int) -> Placement:
    """Before any load is known: every expert once in order, then spare slot i holds expert i mod E.

    Args:
        experts: logical experts E.
        ranks: number of ranks R.
        slots_per_rank: experts each rank has room for; R * slots_per_rank >= E.

    Returns:
        A `Placement` for `ExpertBuffer`.

    Raises:
        InvalidArgument: a number is below 1, or there are fewer slots than experts.

    Source: docs/design/0003-expert-parallel.md.

    >>> initial_placement(4, 2, 3).slots
    (0, 1, 2, 3, 0, 1)
    """
    total = _slots(experts, ranks, slots_per_rank)
    return Placement.of(experts, [slot % experts for slot in range(total)])


def balance(loads: torch.Tensor, ranks: int, slots_per_rank: int) -> Placement:
    """A placement that evens out the ranks' work, with spare slots given to replicas of busy experts.

    Args:
        loads: [steps, E] tokens (or any measure of work, >= 0, any real dtype) each expert got in each step.
        ranks: number of ranks R.
        slots_per_rank: experts each rank has room for; R * slots_per_rank >= E.

    Returns:
        A `Placement` for `ExpertBuffer`; compare placements with `imbalance`.

    Raises:
        InvalidArgument: loads are not [steps, E], negative or not finite; there are fewer slots than experts.

    Source: the aim of deepseek-ai/EPLB, by an algorithm of its own; docs/design/0003-expert-parallel.md.

    Expert 0 below is asked as often as the rest together, so it gets the spare slots.

    >>> balance(torch.tensor([[30, 10, 10, 10]]), ranks=3, slots_per_rank=2).slots
    (0, 1, 0, 2, 0, 3)
    """
    if not isinstance(loads, torch.Tensor) or loads.ndim != 2:
        got = list(loads.shape) if isinstance(loads, torch.Tensor) else type(loads).__name__
        raise invalid("balance: loads", got, "must be a tensor [steps,E]")
    work = loads.detach().cpu().double()
    if not bool(torch.isfinite(work).all()) or bool((work < 0).any()):
        raise invalid("balance: loads", "a negative or non-finite load", "must be finite and >= 0", nearest=0)
    experts = work.shape[1]
    total = _slots(experts, ranks, slots_per_rank)
    counts = _replicate(work, total - experts, ranks)
    homes = _place(work / counts, counts, ranks, slots_per_rank)
    _separate(homes, work / counts)
    return Placement.of(experts, [expert for home in homes for expert in sorted(home)])


def imbalance(placement: Placement, loads: torch.Tensor, ranks: int) -> float:
    """Time of the slowest rank over that of a perfect balance, summed over steps: >= 1, and 1 is perfect.

    Args:
        placement: where the experts live; replicas share an expert's load evenly.
        loads: [steps, E] of any real dtype, as for `balance`.
        ranks: number of ranks.

    Returns:
        The ratio; 1.0 when there is no load.

    Raises:
        InvalidArgument: loads are not [steps, E], or the slots do not divide among the ranks.

    Source: docs/design/0003-expert-parallel.md.

    >>> imbalance(Placement.contiguous(2, 2), torch.tensor([[3.0, 1.0]]), ranks=2)
    1.5
    """
    if not isinstance(loads, torch.Tensor) or loads.ndim != 2 or loads.shape[1] != placement.experts:
        got = list(loads.shape) if isinstance(loads, torch.Tensor) else type(loads).__name__
        raise invalid("imbalance: loads", got, f"must be a tensor [steps,{placement.experts}]")
    counts = torch.tensor([len(places) for places in placement.replicas], dtype=torch.float64)
    share = loads.detach().cpu().double() / counts
    slots = torch.tensor(placement.slots).reshape(ranks, placement.local_slots(ranks))
    per_rank = share[:, slots].sum(2)
    mean = float(per_rank.mean(1).sum())
    return float(per_rank.max(1).values.sum()) / mean if mean else 1.0


def _slots(experts: int, ranks: int, slots_per_rank: int) -> int:
    """All slots, after checking the sizes."""
    if checks.integer("balance", "ranks", ranks) < 1:
        raise invalid("balance: ranks", ranks, "must be >= 1", nearest=1)
    total = ranks * checks.integer("balance", "slots_per_rank", slots_per_rank)
    if total < experts or experts < 1:
        rule = f"{ranks} ranks must have room for {experts} experts (at least 1)"
        raise invalid("balance: slots_per_rank", slots_per_rank, rule, nearest=max(-(-experts // ranks), 1))
    return total


def _replicate(loads: torch.Tensor, spare: int, ranks: int) -> torch.Tensor:
    """Replicas per expert [E]: each spare slot goes where it lowers the summed largest share most.

    Ties (two experts at the top: one more replica alone lowers nothing) go to the larger share, then the lower number.
    """
    counts = torch.ones(loads.shape[1], dtype=torch.float64)
    for _ in range(spare):
        share = loads / counts
        cost = torch.maximum(_largest_other(share), loads / (counts + 1)).sum(0)
        full = counts >= ranks
        if not bool(full.all()):
            cost = cost.masked_fill(full, float("inf"))
        best = (cost == cost.min()).nonzero().reshape(-1)
        counts[best[share.sum(0)[best].argmax()]] += 1
    return counts


def _largest_other(share: torch.Tensor) -> torch.Tensor:
    """For each step and expert the largest share among all other experts [steps,E]."""
    if share.shape[1] < 2:
        return torch.zeros_like(share)
    top = share.topk(2, dim=1)
    first = torch.arange(share.shape[1]) == top.indices[:, :1]
    return torch.where(first, top.values[:, 1:], top.values[:, :1])


def _place(share: torch.Tensor, counts: torch.Tensor, ranks: int, per_rank: int) -> list[list[int]]:
    """Replicas by falling load, each to the rank with room that keeps the summed largest load lowest.

    A rank that holds the expert already is taken only when no other has room; ties go to the lower rank.
    """
    replicas = torch.arange(share.shape[1]).repeat_interleave(counts.long())
    order = share.sum(0)[replicas].sort(descending=True, stable=True).indices
    homes: list[list[int]] = [[] for _ in range(ranks)]
    load = torch.zeros(share.shape[0], ranks, dtype=torch.float64)
    for expert in replicas[order].tolist():
        cost = torch.maximum(_largest_other(load), load + share[:, expert : expert + 1]).sum(0)
        room = [rank for rank in range(ranks) if len(homes[rank]) < per_rank]
        fresh = [rank for rank in room if expert not in homes[rank]]
        rank = min(fresh or room, key=lambda r: (float(cost[r]), r))
        homes[rank].append(expert)
        load[:, rank] += share[:, expert]
    return homes


def _repeats(home: list[int]) -> int:
    return len(home) - len(set(home))


def _separate(homes: list[list[int]], share: torch.Tensor) -> None:
    """Swap replicas between ranks until no rank holds an expert twice, or none can lose a repeat.

    While rank a holds e twice and rank b has none, some swap of e with an expert of b lowers the number of repeats:
    if b holds an expert twice, that one; else b's experts are distinct and a lacks one of them. So this ends without
    repeats whenever no expert has more replicas than there are ranks. The cheapest such swap is taken.
    """
    while True:
        swaps = [swap for rank, home in enumerate(homes) if _repeats(home) for swap in _swaps(homes, rank)]
        if not swaps:
            return
        load = torch.stack([share[:, home].sum(1) for home in homes], dim=1)
        rank, expert, other, partner = min(swaps, key=lambda swap: (_cost(load, share, swap), swap))
        homes[rank].remove(expert)
        homes[other].remove(partner)
        homes[rank].append(partner)
        homes[other].append(expert)


_Swap = tuple[int, int, int, int]


def _swaps(homes: list[list[int]], rank: int) -> list[_Swap]:
    """(rank, repeated expert, other rank, expert there) of swaps that lower the number of repeats."""
    home, found = homes[rank], []
    for expert in {entry for entry in home if home.count(entry) > 1}:
        for other, there in enumerate(homes):
            if other == rank or expert in there:
                continue
            for partner in set(there):
                gained = 1 + (there.count(partner) > 1) - (partner in home)
                if gained > 0:
                    found.append((rank, expert, other, partner))
    return found


def _cost(load: torch.Tensor, share: torch.Tensor, swap: _Swap) -> float:
    """Summed largest load after a swap."""
    rank, expert, other, partner = swap
    changed = load.clone()
    moved = share[:, expert] - share[:, partner]
    changed[:, rank] -= moved
    changed[:, other] += moved
    return float(changed.max(1).values.sum())
