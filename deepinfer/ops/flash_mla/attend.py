"""The meaning of attention, in float64 and for one query token at a time: every reference of this family calls it.

Written to be read, not to be fast. lse is the natural log of the sum of exponentials of the scaled logits.
"""

from __future__ import annotations

import torch

from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import Layout


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, sink: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One token: q [h, d], keys [n, d], values [n, d_v], sink [h] -> (out [h, d_v], lse [h], max logit [h]), float64.

    No key at all gives out 0, lse -inf and max -inf, whatever the sink.
    """
    heads = q.shape[0]
    if keys.shape[0] == 0:
        nothing = torch.full((heads,), -torch.inf, dtype=torch.float64)
        return torch.zeros(heads, values.shape[-1], dtype=torch.float64), nothing, nothing
    logits = scale * (q.double() @ keys.double().T)
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.softmax(logits, dim=-1)
    out = weights @ values.double()
    return apply_sink(out, lse, sink), lse, logits.amax(-1)


def apply_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """out [h, d_v] times 1 / (1 + exp(sink - lse)), lse [h]; a row without keys stays 0."""
    if sink is None:
        return out
    share = torch.sigmoid(lse - sink.double())
    return torch.where(lse[:, None] == -torch.inf, torch.zeros_like(out), out * share[:, None])


def visible_slots(indices: torch.Tensor, length: int, capacity: int) -> torch.Tensor:
    """The slots a query uses: the first `length` entries of indices [K] that lie in [0, capacity), in order."""
    used = indices[: max(length, 0)].long()
    return used[(used >= 0) & (used < capacity)]


def page_slots(table: torch.Tensor, length: int, blocks: int, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the keys 0 .. length-1 of a request with block ids `table`, and which of them exist.

    A key whose block id is outside [0, blocks) does not exist. `length` is clamped to what the table holds.
    """
    positions = torch.arange(min(max(length, 0), table.shape[0] * page))
    block = table.long()[positions // page]
    return block * page + positions % page, (block >= 0) & (block < blocks)


def read(cache: torch.Tensor, layout: Layout, slots: torch.Tensor) -> torch.Tensor:
    """float64 rows of the cache at `slots`, dequantised without rounding."""
    return read_slots(cache, layout, slots, torch.float64)
