"""Latent attention on the CPU: one request (or token) at a time, exact lengths, as few torch calls as possible.

    request r:  pages -> keys [n, d] float32        (a view of the cache if its blocks are neighbours, else one gather)
                logits = q [t*h, d] @ keys^T        (blocks of KEYS keys; up to ONE_PASS keys in a single block)
                softmax, @ keys[:, :d_v]            (online over blocks)

Bound: bytes n * d * 4 (read twice, from L2 when a block fits) and 2 * t * h * n * (d + d_v) FLOPs. Short contexts are
bound by the number of torch calls, hence the single-block path of five calls. No CPU below AVX512-BF16 multiplies bf16
fast, so bf16 and quantised rows become float32 block by block.

Invariants: blocking depends on the request's own shape alone and every operand begins on a 64-byte boundary, so a
request's bits do not depend on its batch. Keys outside a request's length are never touched, so need no masking; a
non-finite value under the causal mask sends the block through the portable path, which keeps it from other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from deepinfer.hal.types import YES, Support
from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import Layout
from deepinfer.ops.flash_mla.portable_dense import attend_blocks

KEYS = 512  # keys of a block: [512, 576] float32 is 1.1 MB, an L2 of today
ONE_PASS = 1024  # requests up to this length take a single block
ROWS = 512  # query rows (tokens * heads) taken together

Keys = Callable[[int, int], torch.Tensor]  # (first, end) -> float32 rows [end - first, d]


class Rows:
    """Where the results of some query rows go: out [r, d_v], top [r] (largest logit), share [r] (1 / sum)."""

    def __init__(self, count: int, d_v: int) -> None:
        self.out = torch.zeros(count, d_v)
        self.top = torch.full((count,), -torch.inf)
        self.share = torch.ones(count)

    def lse(self) -> torch.Tensor:
        """Natural log of the sums [r]; -inf where no key came."""
        return self.top - self.share.log()


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
    if n <= ONE_PASS:
        attend_block(q, keys(0, n), diagonal, out, top, share)
    else:
        _attend_online(q, keys, n, diagonal, out, top, share)
    if diagonal and not bool(out.isfinite().all()):
        _attend_guarded(q, keys, n, diagonal, out, top, share)


def attend_block(
    q: torch.Tensor, block: torch.Tensor, diagonal: int, out: torch.Tensor, top: torch.Tensor, share: torch.Tensor
) -> None:
    """All keys in one block [n, d]: five calls."""
    logits = torch.mm(q, block.T)
    if diagonal:
        _mask(logits, diagonal, block.shape[0], 0, block.shape[0])
    weights = torch.softmax(logits, -1)
    torch.mm(weights, block[:, : out.shape[1]], out=out)
    torch.amax(logits, -1, out=top)
    torch.amax(weights, -1, out=share)


def _attend_online(
    q: torch.Tensor, keys: Keys, n: int, diagonal: int, out: torch.Tensor, top: torch.Tensor, share: torch.Tensor
) -> None:
    total = torch.zeros_like(top)
    out.zero_()
    top.fill_(-torch.inf)
    for first in range(0, n, KEYS):
        end = min(first + KEYS, n)
        block = keys(first, end)
        logits = torch.mm(q, block.T)
        if end > n - diagonal:
            _mask(logits, diagonal, n, first, end)
        # The first key is visible to every row, so the maximum is finite from the first block on.
        higher = torch.maximum(top, logits.amax(-1))
        weights = logits.sub_(higher[:, None]).exp_()
        keep = (top - higher).exp_()
        total.mul_(keep).add_(weights.sum(-1))
        out.mul_(keep[:, None]).addmm_(weights, block[:, : out.shape[1]])
        top.copy_(higher)
    torch.reciprocal(total, out=share)
    out.mul_(share[:, None])


def _mask(logits: torch.Tensor, diagonal: int, n: int, first: int, end: int) -> None:
    """Hide key j from token i of the last `diagonal` ones where j > n - diagonal + i; logits [t * h, end - first]."""
    begin = max(first, n - diagonal)
    token = torch.arange(n - diagonal, n)
    hidden = torch.arange(begin, end) > token[:, None]
    view = logits.view(diagonal, -1, end - first)[:, :, begin - first :]
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
