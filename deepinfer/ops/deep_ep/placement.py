"""Where experts live: slots of ranks, some holding replicas of one expert, and which replica a token takes.

Invariants: a slot is numbered rank * local_slots + position; a choice of replica depends only on the source rank and
the token's number, never on the rest of the batch; ids outside [0, E) stay unused.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deepinfer.errors import invalid

REPLICA_STRIDE = 23333  # spreads consecutive tokens over replicas; a prime, so it shares no factor with small counts
UNUSED = -1


@dataclass(frozen=True)
class Placement:
    """Logical expert of every slot, rank by rank.

    Attributes:
        experts: E.
        slots: R * L expert numbers; slot r * L + i is place i of rank r. Every expert has at least one slot.

    >>> Placement(2, (0, 1, 1, 0)).replicas
    ((0, 3), (1, 2))
    """

    experts: int
    slots: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        found: list[list[int]] = [[] for _ in range(self.experts)]
        for slot, expert in enumerate(self.slots):
            if not 0 <= expert < self.experts:
                raise invalid(f"Placement.slots[{slot}]", expert, f"must be in [0, {self.experts})")
            found[expert].append(slot)
        empty = [expert for expert, places in enumerate(found) if not places]
        if empty:
            raise invalid("Placement.slots", self.slots, f"must hold every expert; without a slot: {empty[:8]}")
        object.__setattr__(self, "replicas", tuple(tuple(places) for places in found))

    @staticmethod
    def of(experts: int, slots: Sequence[int]) -> Placement:
        """From any sequence of integers."""
        return Placement(experts, tuple(int(expert) for expert in slots))

    @staticmethod
    def contiguous(experts: int, ranks: int) -> Placement:
        """E/R experts per rank in order, no replicas."""
        if experts % ranks:
            near = max(experts // ranks, 1) * ranks
            rule = f"must be a multiple of {ranks} ranks without a placement"
            raise invalid("deep_ep: num_experts", experts, rule, near)
        return Placement(experts, tuple(range(experts)))

    def local_slots(self, ranks: int) -> int:
        """Slots of each rank."""
        if len(self.slots) % ranks:
            near = max(len(self.slots) // ranks, 1) * ranks
            raise invalid("Placement: number of slots", len(self.slots), f"must be a multiple of {ranks} ranks", near)
        return len(self.slots) // ranks

    @property
    def identity(self) -> bool:
        """Whether slot numbers are expert numbers."""
        return self.slots == tuple(range(self.experts))

    @property
    def digest(self) -> int:
        """A number that differs between different placements (31 bits); ranks compare it on every dispatch."""
        return zlib.crc32(repr((self.experts, self.slots)).encode()) & 0x7FFFFFFF


class Router:
    """Turns expert ids of one source rank into slots on a device, with the tables kept there."""

    def __init__(self, placement: Placement, rank: int, device: torch.device) -> None:
        self.placement, self._rank = placement, rank
        widest = max((len(places) for places in placement.replicas), default=1)
        table = [[*places, *[UNUSED] * (widest - len(places))] for places in placement.replicas]
        self._table = torch.tensor(table, dtype=torch.int64, device=device).reshape(placement.experts, widest)
        counts = [len(places) for places in placement.replicas]
        self._counts = torch.tensor(counts, dtype=torch.int64, device=device)

    def slots(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T,K] of logical experts -> slots [T,K] int32, -1 where the id is outside [0, E)."""
        used = (ids >= 0) & (ids < self.placement.experts)
        if self.placement.identity or not self.placement.experts:
            return torch.where(used, ids, UNUSED).to(torch.int32)
        expert = torch.where(used, ids, 0).long()
        token = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1)
        choice = (self._rank + REPLICA_STRIDE * token) % self._counts[expert]
        return torch.where(used, self._table[expert, choice], UNUSED).to(torch.int32)
