"""Portable decode of few keys whose lengths lie in host memory: in as few torch calls as possible.

Below a few hundred keys the number of calls decides, not the arithmetic: one call costs about as much as 4 heads x 32
keys. Block ids are looked at as a list, and requests of equal length are taken together while their keys fit GROUP, so
that every length is exact and nothing but the causal mask is masked.

Invariant: only results that are finite are kept. Whatever needs care (infinite logits, NaN under the causal mask,
blocks outside the cache) shows as a result that is not finite, or in the ids, and goes the general way.
"""

from __future__ import annotations

import math
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
    blocks, page, _ = cache.shape
    lengths = args["seq_lens"].tolist()
    n, rows = max(lengths, default=0), s_q * heads
    if not rows or n < 1 or min(lengths) < s_q or n > table.shape[1] * page or n * (d + 2 * rows) > BUDGET:
        return None
    ids = table.narrow(1, 0, -(-n // page))
    for row, length in zip(ids.tolist(), lengths, strict=True):
        used = row[: -(-length // page)]
        if min(used) < 0 or max(used) >= blocks:
            return None
    wide = torch.mul(q if q.dtype is torch.float32 else q.float(), args["softmax_scale"]).reshape(b, rows, d)
    masked, layout = s_q > 1 and args["causal"], LAYOUTS[args["format"]]
    done = []
    for first, end in _runs(lengths, d):
        lead, length = (end - first,) if end - first > 1 else (), lengths[first]
        part, used = (wide, ids) if end - first == b else (wide[first:end], ids[first:end, : -(-length // page)])
        queries = part.view(*lead, rows, d)  # keys go by no name here, so that each run's take the memory of the last
        done.append(_attend(queries, _keys(cache, layout, used, lead, length), s_q if masked else 0, d_v))
    outs, sums = zip(*done, strict=True)
    out = outs[0] if len(done) == 1 else torch.cat([part.view(-1) for part in outs])
    lse = sums[0] if len(done) == 1 else torch.cat([part.view(-1) for part in sums])
    # what is not finite in a key shows in the sums of the logits; only under the mask it may reach the result alone
    if not math.isfinite(sum(lse.view(-1).tolist())) or (masked and not known_finite(out)):
        return None
    return out.view(b, s_q, heads, d_v), lse.view(b, s_q, heads)


def _attend(q: torch.Tensor, keys: torch.Tensor, tokens: int, d_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows q [.., r, d] over keys [.., n, d]: out [.., r, d_v] and lse [.., r].

    The last `tokens` keys are the rows' own tokens, under a causal mask. A product of matrices costs less per call than
    one of batches, so a single request has no batch dimension.
    """
    product = torch.mm if q.ndim == 2 else torch.bmm
    logits = product(q, keys.mT)
    if tokens:
        n = keys.shape[-2]
        seen = torch.arange(n - tokens, n).view(tokens, 1, 1)
        logits.view(-1, tokens, q.shape[-2] // tokens, n).masked_fill_(torch.arange(n) > seen, -torch.inf)
    weights = torch.softmax(logits, -1)
    out = product(weights, keys.narrow(-1, 0, d_v))
    # the largest weight is 1 / (sum of exponentials)
    return out, torch.amax(logits, -1).sub_(torch.amax(weights, -1).log_())


def _runs(lengths: Sequence[int], d: int) -> Iterator[tuple[int, int]]:
    """[0, b) cut into runs of equal length with at most GROUP floats of keys."""
    first = 0
    for r in range(1, len(lengths) + 1):
        if r == len(lengths) or lengths[r] != lengths[first] or (r - first + 1) * lengths[first] * d > GROUP:
            yield first, r
            first = r


def _keys(cache: torch.Tensor, layout: Layout, ids: torch.Tensor, lead: tuple[int, ...], n: int) -> torch.Tensor:
    """float32 rows [*lead, n, d] of the first n keys of requests with block ids [g, pages], all in the cache."""
    page = cache.shape[1]
    if layout.quantised:
        slots = (ids.long()[..., None] * page + torch.arange(page)).view(ids.shape[0], -1)[:, :n]
        return read_slots(cache, layout, slots.reshape(-1)).view(*lead, n, -1)
    whole = cache.narrow(1, 0, n) if n < page else cache
    found = whole.index_select(0, ids.reshape(-1)).view(*lead, -1, cache.shape[2])
    found = found.narrow(-2, 0, n) if found.shape[-2] > n else found
    return found if found.dtype is torch.float32 else found.float()
