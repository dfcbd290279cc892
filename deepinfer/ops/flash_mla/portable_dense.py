"""Portable dense attention over a paged cache (decode) and over ragged segments (prefill).

Invariants: lengths are read on the host only where they lie in host memory; elsewhere loops run to the limits that
shapes give and masks do the rest. Query tokens and keys are taken in blocks, so no score matrix ever exists in full.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.ops.flash_mla import portable_short
from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer.ops.flash_mla.online import BUDGET, KEY_BLOCK, OnlineSoftmax, group_step, on_host, sink_share
from deepinfer.registry.spec import Args, Tensors

Out = tuple[torch.Tensor | None, ...]
# (first key, end key) -> (keys [g, c, d], values [g, c, d_v], exists: bool [g, c], None = all do)
Loader = Callable[[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]


def host_max(values: torch.Tensor, limit: int) -> int:
    """An upper bound of `values`: their maximum where reading it is free, else `limit`."""
    if not on_host(values):
        return limit
    return min(max(int(values.max()), 0), limit) if values.numel() else 0


def host_range(values: torch.Tensor, low: int, high: int) -> tuple[int, int]:
    """Bounds of `values`: their own minimum and maximum where reading them is free, else low and high."""
    if not on_host(values) or not values.numel():
        return low, high
    least, most = torch.aminmax(values)
    return int(least), int(most)


def attend_blocks(
    q: torch.Tensor, load: Loader, n_keys: int, d_v: int, last: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of scaled queries [g, r, d] to keys 0 .. n_keys-1, row (g, r) seeing keys <= last [g, r].

    Returns out [g, r, d_v] and lse [g, r], float32.
    """
    state = OnlineSoftmax(q.shape[0], q.shape[1], d_v, q.device)
    near, far = host_range(last, -1, n_keys - 1)  # all rows see keys up to the first, none sees one past the second
    n_keys = min(n_keys, far + 1)
    uniform = q.shape[1] == 1 or (on_host(last) and bool((last == last[:, :1]).all()))
    limit = last[:, :1, None] if uniform else last[:, :, None]
    for first in range(0, n_keys, KEY_BLOCK):
        end = min(first + KEY_BLOCK, n_keys)
        keys, values, exists = load(first, end)
        seen = None if exists is None else exists[:, None]
        if end - 1 > near:
            visible = torch.arange(first, end, device=q.device) <= limit
            seen = visible if seen is None else seen & visible
        state.add(torch.bmm(q, keys.transpose(1, 2)), values, seen)
    out, lse, _ = state.result()
    return out, lse


def existing(rows: torch.Tensor, exists: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows [n, ...], zeroed in place where exists [n] is False, and exists, or None if all are known to exist."""
    if on_host(exists) and bool(exists.all()):
        return rows, None
    return rows.masked_fill_(~exists.view(-1, *(1,) * (rows.ndim - 1)), 0.0), exists


def paged_loader(cache: torch.Tensor, layout: Layout, table: torch.Tensor, lens: torch.Tensor, d_v: int) -> Loader:
    """Keys of requests with block ids table [g, max_blocks]; what lies past lens [g] or in no block is zero."""
    blocks, page = cache.shape[:2]

    def load(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        position = torch.arange(first, end, device=cache.device)
        block = table[:, position // page].long()
        exists = (block >= 0) & (block < blocks) & (position < lens[:, None])
        slots = torch.where(exists, block * page + position % page, 0)
        keys, found = existing(read_slots(cache, layout, slots.flatten()), exists.flatten())
        keys = keys.view(*slots.shape, -1)
        return keys, keys[..., :d_v], None if found is None else exists

    return load


def decode(args: Args, out: Out) -> Tensors:
    """flash_mla.decode: requests in groups, query tokens in blocks; few keys in host memory all at once."""
    q, cache, table = args["q"], args["kv_cache"], args["block_table"]
    short = portable_short.decode(args) if on_host(q) else None
    if short is not None:
        return finish(*short, args["attn_sink"], q.dtype, out)
    b, s_q, heads, d = q.shape
    d_v, layout = args["d_v"], LAYOUTS[args["format"]]
    result = torch.zeros((b, s_q, heads, d_v), dtype=torch.float32, device=q.device)
    lse = torch.full((b, s_q, heads), -torch.inf, dtype=torch.float32, device=q.device)
    capacity = table.shape[1] * cache.shape[1]
    lens = args["seq_lens"].long().clamp(0, capacity)
    n_keys = host_max(lens, capacity) if cache.shape[0] else 0
    tokens = max(1, min(s_q, BUDGET // (KEY_BLOCK * 2 * heads)))
    step = group_step(tokens * heads, n_keys, d)
    for r in range(0, b, step):
        part = slice(r, min(r + step, b))
        load = paged_loader(cache, layout, table[part], lens[part], d_v)
        for i in range(0, s_q, tokens):
            chunk = q[part, i : i + tokens].float() * args["softmax_scale"]
            token = torch.arange(i, i + chunk.shape[1], device=q.device)
            last = lens[part, None] - (s_q - token if args["causal"] else torch.ones_like(token))
            rows = last.repeat_interleave(heads, 1)
            o, e = attend_blocks(chunk.flatten(1, 2), load, n_keys, d_v, rows)
            result[part, i : i + tokens] = o.view(*chunk.shape[:3], d_v)
            lse[part, i : i + tokens] = e.view(chunk.shape[:3])
    return finish(result, lse, args["attn_sink"], q.dtype, out)


def finish(result: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor | None, dtype: torch.dtype, out: Out) -> Tensors:
    """Apply the sink to result [..., t, h, d_v] with lse [..., t, h]; deliver out and lse [..., h, t]."""
    if sink is not None:
        result = result * sink_share(lse, sink)[..., None]
    turned = lse.transpose(-1, -2)
    return (
        result.to(dtype) if out[0] is None else out[0].copy_(result),
        turned.contiguous() if out[1] is None else out[1].copy_(turned),
    )
