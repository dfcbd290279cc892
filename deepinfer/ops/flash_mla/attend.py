"""The meaning of attention, in float64 and for one query token at a time: every reference of this family calls it.

Written to be read, not to be fast. lse is the natural log of the sum of exponentials of the scaled logits.
Logits that are not finite: docs/design/0009-infinite-logits.md.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import Layout

# (q, keys, values, scale, sink) of one token -> out [h, d_v], lse [h], largest logit [h]
Token = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float, torch.Tensor | None],
    tuple[torch.Tensor, torch.Tensor, torch.Tensor],
]
USUAL = 100.0  # the tolerances of this family are made for queries up to this size
UNIT = 2.0**-24  # relative error of one float32 rounding


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
    for head in range(heads if n else 0):
        k, v = _of_head(keys, values, head)
        logits = scale * (k.double() @ q[head].double())
        top[head] = logits.amax()
        if top[head] == -torch.inf:  # no key has weight: as without keys, out 0 and lse -inf whatever the sink
            continue
        lse[head] = torch.logsumexp(logits, 0)
        if top[head] == torch.inf:  # infinity less itself: an online softmax has no other answer
            lse[head] = torch.nan
        out[head] = torch.softmax(logits, 0) @ v.double()
        if sink is not None:
            out[head] *= torch.sigmoid(lse[head] - sink[head].double())
    return out, lse, top


def rounding(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, sink: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How far results of `attend` may move because logits are float32 sums: same arguments and shapes.

    A sum of d products in any order, of a query that was scaled (and rotated) first, is off by at most
    e = (d + 5) * 2^-24 * scale * sum |q_c k_c|. That moves lse and the largest logit by e, each weight by a factor
    within exp(+-2e) and the sink's share by one within exp(+-e); out stays between the values. Zero for queries up to
    USUAL, which the tolerance covers, and for those that are not finite, where float32 and float64 agree.
    """
    heads, n, d_v = q.shape[0], keys.shape[0], values.shape[-1]
    out, error = torch.zeros(heads, d_v, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
    for head in range(heads if n else 0):
        wide = q[head].double().abs()
        if q.dtype is torch.bfloat16 or not bool(wide.isfinite().all()) or float(wide.max()) <= USUAL:
            continue
        k, v = (rows.double().abs() for rows in _of_head(keys, values, head))
        error[head] = (len(wide) + 5) * UNIT * abs(scale) * (k @ wide).max()
        out[head] = torch.expm1(3 * error[head]).clamp(max=2.0) * v.amax(0)
    return out.nan_to_num(0.0, 0.0), error.nan_to_num(0.0, 0.0), error.nan_to_num(0.0, 0.0)


def _of_head(keys: torch.Tensor, values: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (keys, values) if keys.ndim == 2 else (keys[:, head], values[:, head])


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
