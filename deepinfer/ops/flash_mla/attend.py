"""The meaning of attention, in float64 and for one query token at a time: every reference of this family calls it.

Written to be read, not to be fast. lse is the natural log of the sum of exponentials of the scaled logits.
A logit of NaN or +inf makes out and lse of its row NaN.
"""

from __future__ import annotations

import torch

from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import Layout


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, sink: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One token, head by head: q [h, d], sink [h] -> out [h, d_v], lse [h], largest logit [h], float64.

    keys [n, d] and values [n, d_v] are shared by the heads; [n, h, d] and [n, h, d_v] belong to one head each.
    """
    heads, n, d_v = q.shape[0], keys.shape[0], values.shape[-1]
    out = torch.zeros(heads, d_v, dtype=torch.float64)
    lse = torch.full((heads,), -torch.inf, dtype=torch.float64)
    top = lse.clone()
    if n == 0:  # no key at all: out 0, lse -inf, whatever the sink
        return out, lse, top
    for head in range(heads):
        k, v = (keys, values) if keys.ndim == 2 else (keys[:, head], values[:, head])
        logits = scale * (k.double() @ q[head].double())
        lse[head], top[head] = torch.logsumexp(logits, 0), logits.amax()
        if top[head] == torch.inf:  # infinity less itself: an online softmax has no other answer
            lse[head] = torch.nan
        out[head] = torch.softmax(logits, 0) @ v.double()
        if sink is not None:
            out[head] *= torch.sigmoid(lse[head] - sink[head].double())
    return out, lse, top


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
