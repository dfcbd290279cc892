"""`Handle`: what a dispatch leaves behind so that its results can find their way home.

Invariants: it owns its tensors (nothing aliases communication memory), so any number of handles may be outstanding
and a handle may be combined more than once; it belongs to the buffer that made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Handle:
    """Return address of one dispatch.

    Attributes:
        layout: "tokens" or "experts".
        alignment: multiple at which groups of layout "experts" start.
        tokens: T of this rank's call; `combine` returns that many rows.
        starts: [L] int32 first row of each local expert's group; None in layout "tokens".
        counts: [L] int32 (token, slot) pairs per local expert.
        total: [1] int32 valid rows, on the device.
        num_rows: valid rows as an int; None after sync=False.
        rows: rows that `y` must have: `num_rows`, or the capacity after sync=False.
        state: the transport's own return address. owner: the buffer.
    """

    layout: str
    alignment: int
    tokens: int
    starts: torch.Tensor | None
    counts: torch.Tensor
    total: torch.Tensor
    num_rows: int | None
    rows: int
    state: Any = field(repr=False)
    owner: object = field(repr=False)
