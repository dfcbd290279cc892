"""Portable decode of few keys whose lengths lie in host memory: in as few torch calls as possible.

Below a few hundred keys the number of calls decides, not the arithmetic: one call costs about as much as 4 heads x 32
keys. Block ids are looked at as a list, and requests of equal length are taken together while their keys fit GROUP, so
that every length is exact and nothing but the causal mask is masked.

Invariant: only results that are finite are kept. Whatever needs care (infinite logits, NaN under the causal mask,
blocks outside the cache) shows as a result that is not finite, or in the ids, and goes the general way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer.ops.flash_mla.online import BUDGET, known_finite
from deepinfer.registry.spec import Args

GROUP = 10 << 16  # floats of gathered keys, about what a core's own cache holds


def decode(args: Args) -> tuple[torch.Tensor, torch.Tensor] | None:
    """out [b, s_q, h, d_v] and lse [b, s_q, h], float32, without the sink; None = take the general way."""
    q, cache, table, d_v = args["q"], args["kv_cache"], args["block_table"], args["d_v"]
    b, s_q, heads, d = q.shape
    blocks, page = cache.shape[:2]
    lengths = args["seq_lens"].tolist()
    n, rows = max(lengths, default=0), s_q * heads
    if not rows or n < 1 or min(lengths) < s_q or n > table.shape[1] * page or n * (d + 2 * rows) > BUDGET:
        return None
    ids = table.narrow(1, 0, -(-n // page))
    for row, length in zip(ids.tolist(), lengths, strict=True):
        used = row[: -(-length // page)]
        if min(used) < 0 or max(used) >= blocks:
            return None
    wide = torch.mul(q.float(), args["softmax_scale"]).view(b, rows, d)
    out, sums = torch.empty((b, rows, d_v)), torch.empty((2, b, rows))
    layout, causal = LAYOUTS[args["format"]], s_q > 1 and args["causal"]
    for first, end in _runs(lengths, d):
        length = lengths[first]
        keys = _keys(cache, layout, ids[first:end, : -(-length // page)], length)
        logits = torch.bmm(wide[first:end], keys.transpose(1, 2))
        if causal:
            seen = torch.arange(length - s_q, length).view(s_q, 1, 1)
            logits.view(-1, s_q, heads, length).masked_fill_(torch.arange(length) > seen, -torch.inf)
        weights = torch.softmax(logits, -1)
        torch.bmm(weights, keys[..., :d_v], out=out[first:end])
        torch.amax(logits, -1, out=sums[0, first:end])
        torch.amax(weights, -1, out=sums[1, first:end])  # the largest weight is 1 / (sum of exponentials)
    if not known_finite(out):
        return None
    lse = sums[0] - sums[1].log_()
    return out.view(b, s_q, heads, d_v), lse.view(b, s_q, heads)


def _runs(lengths: Sequence[int], d: int) -> Iterator[tuple[int, int]]:
    """[0, b) cut into runs of equal length with at most GROUP floats of keys."""
    first = 0
    for r in range(1, len(lengths) + 1):
        if r == len(lengths) or lengths[r] != lengths[first] or (r - first + 1) * lengths[first] * d > GROUP:
            yield first, r
            first = r


def _keys(cache: torch.Tensor, layout: Layout, ids: torch.Tensor, n: int) -> torch.Tensor:
    """float32 rows [g, n, d] of the first n keys of requests with block ids [g, pages], all in the cache."""
    page, groups = cache.shape[1], ids.shape[0]
    if layout.quantised:
        slots = (ids.long()[..., None] * page + torch.arange(page)).view(groups, -1)[:, :n]
        return read_slots(cache, layout, slots.reshape(-1)).view(groups, n, -1)
    whole = cache.narrow(1, 0, min(page, n)).index_select(0, ids.reshape(-1))
    return whole.view(groups, -1, cache.shape[2])[:, :n].float()
