"""Latent attention on the CPU: one request (or token) at a time, exact lengths, as few torch calls as possible.

    request r:  pages -> keys [n, d] float32        (a view of the cache if its blocks are neighbours, else one gather)
                spans of SPAN keys from position 0: (later spans are merged by their sums)
                    logits = q [t*h, d] @ keys^T
                    softmax
                    @ keys[:, :d_v]                 (in blocks of BLOCK keys, summed in order)

Bound: bytes n * d * 4 (read twice, from L2 when a span fits) and 2 * t * h * n * (d + d_v) FLOPs. Short contexts are
bound by the number of torch calls, hence the path of five calls for up to BLOCK keys. No CPU below AVX512-BF16
multiplies bf16 fast, so bf16 and quantised rows become float32 span by span.

Invariants, which make a token's bits independent of its batch, its chunk and the pages that hold its keys:
- spans and blocks lie at fixed positions of the request, and keys that a token does not see add exact zeros;
- products have whole row tiles (see `product`), at least LEAST keys, and at most BLOCK keys to sum over: a BLAS sums
  that many in one go, so that a shorter last block gives the same bits as one filled up with zeros;
- every operand begins on a 64-byte boundary.
Keys outside a request's length are never touched, so need no masking; a non-finite value under the causal mask sends
the rows through the portable path, which keeps it from other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import pad

from deepinfer.hal.types import YES, Support
from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import Layout
from deepinfer.ops.flash_mla.portable_dense import attend_blocks
from deepinfer_cpu.product import LEAST, filled, padding

SPAN = 1024  # keys whose logits exist together
BLOCK = 128  # keys that one product sums over
ROWS = 512  # query rows (tokens * heads) taken together

Keys = Callable[[int, int], torch.Tensor]  # (first, end) -> float32 rows [end - first, d]
Hidden = tuple[int, int, int, int] | None  # causal mask: (tokens, rows of a token, n, first key)


class Rows:
    """Where the results of some query rows go: out [r, d_v], top [r] (largest logit), share [r] (1 / sum)."""

    def __init__(self, count: int, d_v: int, cleared: bool = True) -> None:
        self.out = torch.empty(count, d_v, dtype=torch.float32)
        self.top, self.share = torch.empty(2, count, dtype=torch.float32).unbind(0)
        if cleared:
            self.clear(slice(None))

    def clear(self, rows: slice) -> None:
        """What rows without a key have."""
        self.out[rows] = 0.0
        self.top[rows] = -torch.inf
        self.share[rows] = 1.0

    def lse(self) -> torch.Tensor:
        """Natural log of the sums [r]; -inf where no key has weight, and there out becomes 0."""
        settle(self.out, self.top, self.share)
        return self.top - self.share.log()


def settle(out: torch.Tensor, top: torch.Tensor, share: torch.Tensor) -> None:
    """Rows whose logits are all -inf, which softmax made NaN, become rows without keys."""
    if bool(share.isnan().any()):
        empty = top == -torch.inf
        out[empty], share[empty] = 0.0, 1.0


def attend(q: torch.Tensor, keys: Keys, n: int, causal: bool, rows: Rows, at: int) -> None:
    """Attention of scaled q [t, h, d] to n keys; row i of the result goes to rows[at + i].

    With `causal` the t tokens are the last t of the n positions; tokens before position 0 have no key.
    """
    tokens, heads, d = q.shape
    if causal and tokens > n:
        at += (tokens - n) * heads
        q, tokens = q[tokens - n :], n
    if not tokens or not n:
        return
    step = max(1, ROWS // heads)
    if tokens <= step:
        masked = tokens if causal and tokens > 1 else 0
        _attend_part(q.view(-1, d), keys, n, masked, rows, slice(at, at + tokens * heads))
        return
    for i in range(0, tokens, step):
        part = q[i : i + step]
        seen = n - tokens + i + part.shape[0] if causal else n
        here = slice(at + i * heads, at + (i + part.shape[0]) * heads)
        _attend_part(part.view(-1, d), keys, seen, part.shape[0] if causal else 0, rows, here)


def _attend_part(q: torch.Tensor, keys: Keys, n: int, diagonal: int, rows: Rows, here: slice) -> None:
    """Rows q [r, d] and keys 0 .. n-1; the last `diagonal` keys are the rows' own tokens, under a triangular mask."""
    out, top, share = rows.out[here], rows.top[here], rows.share[here]
    for first in range(0, n, SPAN):
        end = min(first + SPAN, n)
        tokens = min(diagonal, n - first)  # the last ones, which see keys of this span
        unseen = q.shape[0] // diagonal * (diagonal - tokens) if diagonal else 0
        hidden = (tokens, (q.shape[0] - unseen) // tokens, n, first) if end > n - tokens else None
        if first == 0:
            attend_block(q, keys(0, end), hidden, out, top, share)
        else:
            part = Rows(q.shape[0] - unseen, out.shape[1])
            attend_block(q[unseen:], keys(first, end), hidden, part.out, part.top, part.share)
            _merge(out[unseen:], top[unseen:], share[unseen:], part)
    if diagonal and not bool(out.isfinite().all()):
        _attend_guarded(q, keys, n, diagonal, out, top, share)


def attend_block(
    q: torch.Tensor, block: torch.Tensor, hidden: Hidden, out: torch.Tensor, top: torch.Tensor, share: torch.Tensor
) -> None:
    """Rows q [r, d] over the keys of one span [n, d]; up to BLOCK keys take five calls."""
    count = q.shape[0]
    if padding(count):
        q = filled(q)
        part = Rows(q.shape[0], out.shape[1], cleared=False)
        attend_block(q, block, hidden, part.out, part.top, part.share)
        for given, made in ((out, part.out), (top, part.top), (share, part.share)):
            given.copy_(made[:count])
        return
    n = block.shape[0]
    if n < LEAST:
        block = pad(block, (0, 0, 0, LEAST - n))
    logits = torch.mm(q, block.T)
    if n < LEAST:
        logits[:, n:] = -torch.inf
    if hidden is not None:
        _mask(logits[:, :n], *hidden)
    weights = torch.softmax(logits, -1)
    _weigh(weights, block.narrow(1, 0, out.shape[1]), out)
    torch.amax(logits, -1, out=top)
    torch.amax(weights, -1, out=share)


def _weigh(weights: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    """out [r, d_v] = weights [r, n] @ values [n, d_v]: products of BLOCK keys each, added in order."""
    n = values.shape[0]
    whole = n // BLOCK
    if n <= BLOCK:
        torch.mm(weights, values, out=out)
        return
    at = whole * BLOCK
    left = weights[:, :at].view(-1, whole, BLOCK).transpose(0, 1)
    torch.sum(torch.bmm(left, values[:at].view(whole, BLOCK, values.shape[1])), 0, out=out)
    if at < n:
        out += torch.mm(weights[:, at:], values[at:])


def _merge(out: torch.Tensor, top: torch.Tensor, share: torch.Tensor, other: Rows) -> None:
    """Take the softmax of another span into out, top and share, in place."""
    settle(out, top, share)
    settle(other.out, other.top, other.share)
    highest = torch.maximum(top, other.top)
    mine, theirs = (top - highest).exp_().div_(share), (other.top - highest).exp_().div_(other.share)
    total = mine + theirs
    out.mul_((mine / total)[:, None]).add_(other.out.mul_((theirs / total)[:, None]))
    top.copy_(highest)
    torch.reciprocal(total, out=share)


def _mask(logits: torch.Tensor, tokens: int, heads: int, n: int, first: int) -> None:
    """Hide key j from token i of the last `tokens` of n positions where j > n - tokens + i.

    logits [>= tokens * heads, c] belong to keys first .. first + c - 1; rows past the tokens' are padding.
    """
    end = first + logits.shape[1]
    begin = max(first, n - tokens)
    token = torch.arange(n - tokens, n)
    hidden = torch.arange(begin, end) > token[:, None]
    view = logits[: tokens * heads].view(tokens, heads, -1)[:, :, begin - first :]
    view.masked_fill_(hidden[:, None], -torch.inf)


def _attend_guarded(
    q: torch.Tensor, keys: Keys, n: int, diagonal: int, out: torch.Tensor, top: torch.Tensor, share: torch.Tensor
) -> None:
    """The portable path for these rows: a NaN or inf reaches the rows that see its key, no other."""

    def load(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        block = keys(first, end)[None]
        return block, block[..., : out.shape[1]], torch.ones(1, end - first, dtype=torch.bool)

    last = torch.arange(n - diagonal, n).repeat_interleave(q.shape[0] // diagonal)
    result, lse = attend_blocks(q[None], load, n, out.shape[1], last[None])
    out.copy_(result[0])
    top.copy_(lse[0])
    share.fill_(1.0)


def paged_keys(cache: torch.Tensor, layout: Layout, ids: Sequence[int], n: int) -> Keys:
    """Access to the first n keys of a request whose block ids `ids` are all in range."""
    page, width = cache.shape[1:]
    if layout.quantised or cache.stride() != (page * width, width, 1):
        return by_slot(cache, layout, (torch.tensor(ids)[:, None] * page + torch.arange(page)).view(-1))
    first = ids[0]
    if ids[-1] - first == len(ids) - 1 and all(block == first + i for i, block in enumerate(ids)):
        return by_row(cache.view(-1, width)[first * page : first * page + n])
    return by_row(cache.index_select(0, torch.tensor(ids)).view(-1, width))


def by_row(rows: torch.Tensor) -> Keys:
    return (lambda a, b: rows[a:b]) if rows.dtype is torch.float32 else (lambda a, b: rows[a:b].float())


def by_slot(cache: torch.Tensor, layout: Layout, slots: torch.Tensor) -> Keys:
    return lambda a, b: read_slots(cache, layout, slots[a:b])


def _has_holes(ids: Sequence[int], blocks: int) -> bool:
    return min(ids) < 0 or max(ids) >= blocks


def attend_request(
    q: torch.Tensor, cache: torch.Tensor, layout: Layout, ids: Sequence[int], n: int, causal: bool, rows: Rows, at: int
) -> None:
    """A request of n keys in blocks `ids`; keys of ids outside the cache are invisible."""
    if n and _has_holes(ids, cache.shape[0]):
        _attend_holes(q, cache, layout, ids, n, causal, rows, at)
    elif n:
        attend(q, paged_keys(cache, layout, ids, n), n, causal, rows, at)


def _attend_holes(
    q: torch.Tensor, cache: torch.Tensor, layout: Layout, ids: Sequence[int], n: int, causal: bool, rows: Rows, at: int
) -> None:
    """One token at a time over the keys that exist."""
    blocks, page, _ = cache.shape
    slots = (torch.tensor(ids)[:, None] * page + torch.arange(page)).view(-1)[:n]
    exists = (slots >= 0) & (slots < blocks * page)
    tokens, heads, _ = q.shape
    for i in range(tokens):
        end = max(n - tokens + i + 1, 0) if causal else n
        kept = slots[:end][exists[:end]]
        attend(q[i : i + 1], by_slot(cache, layout, kept), len(kept), False, rows, at + i * heads)


def aligned(d_qk: int, d_v: int) -> Support:
    """What batch invariance needs of the row widths."""
    if d_qk % 16 or d_v % 16:
        return Support.no(f"d_qk {d_qk} and d_v {d_v} must be multiples of 16 (rows on 64-byte boundaries)")
    return YES
