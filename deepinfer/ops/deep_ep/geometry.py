"""Sizes of one expert buffer and everything that follows from them: capacities, record widths, memory.

Invariants: a `Geometry` is checked once, when it is made; all functions here are pure and allocate nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.errors import invalid

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INT32_MAX = 2**31 - 1
CHUNK_BYTES = 1 << 20
RING_DEPTH = 2
PAGE = 4096
LINE = 64
HEADER_WORDS = 16


def align_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is >= `value`."""
    return -(-value // step) * step


@dataclass(frozen=True)
class Geometry:
    """What all ranks of a buffer agree on (`rank` aside).

    Attributes:
        rank, size: this rank and the number of ranks R.
        max_tokens: most tokens a rank may dispatch in one call.
        hidden: values in a row.
        num_experts: logical experts E.
        top_k: slots of a token K.
        dtype: of rows that are not quantised, and of what `combine` takes and returns.
        local_slots: experts that live on each rank L (replicas count one each).
    """

    rank: int
    size: int
    max_tokens: int
    hidden: int
    num_experts: int
    top_k: int
    dtype: torch.dtype
    local_slots: int

    def __post_init__(self) -> None:
        for name in ("max_tokens", "hidden", "num_experts", "top_k", "local_slots"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise invalid(f"deep_ep: {name}", value, "must be an integer >= 0", nearest=0)
        if self.dtype not in DTYPES:
            names = ", ".join(str(dtype) for dtype in DTYPES)
            raise invalid("deep_ep: dtype", self.dtype, f"must be one of {names}", nearest="torch.bfloat16")
        if self.slot_rows > INT32_MAX or self.record_bytes > INT32_MAX:
            rule = f"ranks * max_tokens * top_k and the bytes of a row must be <= {INT32_MAX} (int32 row numbers)"
            raise invalid("deep_ep: max_tokens", self.max_tokens, rule)

    @property
    def token_rows(self) -> int:
        """Most rows a rank can receive in layout "tokens"."""
        return self.size * self.max_tokens

    @property
    def slot_rows(self) -> int:
        """Most (token, slot) pairs a rank can receive; one token may name one expert in all its slots."""
        return self.size * self.max_tokens * self.top_k

    def row_capacity(self, layout: str, alignment: int) -> int:
        """Rows of a result that is sized to capacity (sync=False)."""
        if layout == "tokens":
            return self.token_rows
        return expert_capacity(self.token_rows, self.top_k, self.local_slots, alignment)

    @property
    def payload_bytes(self) -> int:
        """Most bytes of a row with its scales, over plain rows and every quantised form that fits."""
        quantised = self.hidden + 4 * -(-self.hidden // 32)
        return max(self.hidden * self.dtype.itemsize, quantised)

    @property
    def record_bytes(self) -> int:
        """Most bytes that cross the link for one row: payload, slots and weights (or one weight)."""
        return self.payload_bytes + 4 * max(2 * self.top_k, 1)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one ring entry of a staged transport: at least one record, at most what a call can need."""
        most = self.record_bytes * max(self.max_tokens, 1) * max(self.top_k, 1)
        return align_up(max(self.record_bytes, min(most, CHUNK_BYTES)), PAGE)

    @property
    def slab_bytes(self) -> int:
        """Bytes of one rank's slab in a staged transport: control words, then a ring per source rank."""
        return control_bytes(self.size) + self.size * RING_DEPTH * self.chunk_bytes

    def agreed(self) -> dict[str, int]:
        """The numbers that must be the same on all ranks, by name."""
        names = ("size", "max_tokens", "hidden", "num_experts", "top_k", "local_slots")
        return {name: getattr(self, name) for name in names} | {"dtype": DTYPES.index(self.dtype)}


def control_bytes(ranks: int) -> int:
    """Bytes of a slab's control area: its state, and per rank four flags (a cache line each) and two headers."""
    return align_up(LINE + ranks * (4 * LINE + 2 * 8 * HEADER_WORDS), PAGE)


def expert_capacity(rows: int, top_k: int, experts: int, alignment: int) -> int:
    """Most rows that `rows` tokens of `top_k` slots can take when grouped by expert at this alignment.

    >>> expert_capacity(4, 1, 2, 16)
    32
    """
    pairs = rows * top_k
    return (pairs + min(experts, pairs) * (alignment - 1)) // alignment * alignment


def size_hint(
    max_tokens: int, hidden: int, num_experts: int, top_k: int, dtype: torch.dtype = torch.bfloat16, *, ranks: int
) -> int:
    """Bytes of communication memory that one rank of an `ExpertBuffer` reserves (LocalGroup reserves none).

    Pure: allocates nothing and asks no device. A transport that maps peer memory may state its own figure.

    Args:
        max_tokens, hidden, num_experts, top_k, dtype: as for `ExpertBuffer`.
        ranks: number of ranks of the group.

    Returns:
        Bytes per rank.

    Raises:
        InvalidArgument: a size breaks its rule.

    Source: the slab of docs/design/0003-expert-parallel.md.

    >>> size_hint(128, 512, 64, 8, torch.bfloat16, ranks=4)
    8392704
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise invalid("deep_ep.size_hint: ranks", ranks, "must be an integer >= 1", nearest=1)
    return Geometry(0, ranks, max_tokens, hidden, num_experts, top_k, dtype, -(-num_experts // ranks)).slab_bytes
