"""Portable prefill: ragged query segments over ragged keys, a paged cache, or separate keys and values per head.

Invariants as in portable_dense. Rows that no segment covers go to one spare row of the buffer and are dropped, so
that loops of worst-case length (lengths not readable on the host) need no branch.
"""

from __future__ import annotations

import torch

from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.online import BUDGET, KEY_BLOCK
from deepinfer.ops.flash_mla.portable_dense import Loader, Out, attend_blocks, existing, finish, host_max, paged_loader
from deepinfer.ops.flash_mla.segments import covered, cut
from deepinfer.registry.spec import Args, Tensors


def prefill(args: Args, out: Out) -> Tensors:
    """flash_mla.prefill: one segment after the other, its query tokens in blocks."""
    q, causal = args["q"], args["causal"]
    total, heads, _ = q.shape
    result = torch.zeros((total + 1, heads, args["d_v"]), dtype=torch.float32, device=q.device)
    lse = torch.full((total + 1, heads), -torch.inf, dtype=torch.float32, device=q.device)
    q_start, q_len = cut(args["cu_q"], total)
    k_len, limit = key_lengths(args)
    per_head = args["v"] is not None
    tokens = max(1, BUDGET // (KEY_BLOCK * 2 * heads))
    for r in range(q_len.shape[0]):
        load, n_keys = _loader(args, r), host_max(k_len[r : r + 1], limit)
        for i in range(0, host_max(q_len[r : r + 1], total), tokens):
            token = torch.arange(i, min(i + tokens, total), device=q.device)
            inside = token < q_len[r]
            row = torch.where(inside, q_start[r] + token, total)
            chunk = q.index_select(0, row.clamp(max=total - 1)).float() * args["softmax_scale"]
            last = k_len[r] - (q_len[r] - token if causal else torch.ones_like(token))
            if per_head:
                o, e = attend_blocks(chunk.transpose(0, 1), load, n_keys, args["d_v"], last.expand(heads, -1))
                o, e = o.transpose(0, 1), e.transpose(0, 1)
            else:
                rows = last.repeat_interleave(heads)[None]
                o, e = attend_blocks(chunk.flatten(0, 1)[None], load, n_keys, args["d_v"], rows)
                o, e = o.view(*chunk.shape[:2], -1), e.view(chunk.shape[:2])
            result.index_copy_(0, row, o)
            lse.index_copy_(0, row, e)
    return deliver(result[:total], lse[:total], args, out)


def key_lengths(args: Args) -> tuple[torch.Tensor, int]:
    """Keys of each request [b], and the most that shapes allow."""
    if args["block_table"] is None:
        return cut(args["cu_k"], args["kv"].shape[0])[1], args["kv"].shape[0]
    limit = args["block_table"].shape[1] * args["kv"].shape[1]
    return args["seq_lens"].long().clamp(0, limit), limit if args["kv"].shape[0] else 0


def _loader(args: Args, r: int) -> Loader:
    kv, v, d_v = args["kv"], args["v"], args["d_v"]
    if args["block_table"] is not None:
        lens = key_lengths(args)[0][r : r + 1]
        return paged_loader(kv, LAYOUTS[args["format"]], args["block_table"][r : r + 1], lens, d_v)
    start, length = (edge[r] for edge in cut(args["cu_k"], kv.shape[0]))

    def load(first: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        position = torch.arange(first, end, device=kv.device)
        exists = position < length
        slot = torch.where(exists, start + position, 0)
        keys, found = _rows(kv, slot, exists)
        values = keys[..., :d_v] if v is None else _rows(v, slot, exists)[0]
        return keys, values, None if found is None else exists[None]

    return load


def _rows(source: torch.Tensor, slot: torch.Tensor, exists: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows [S, d] -> [1, c, d] or [S, h, d] -> [h, c, d], float32, zero where they do not exist; and `existing`."""
    picked, found = existing(source.index_select(0, slot).float(), exists)
    return picked[None] if picked.ndim == 2 else picked.transpose(0, 1), found


def deliver(result: torch.Tensor, lse: torch.Tensor, args: Args, out: Out) -> Tensors:
    """`finish` that leaves rows of a caller's `out` alone when no segment covers them. lse [T, h]."""
    q = args["q"]
    if out[0] is None or out[1] is None:
        return finish(result, lse, args["attn_sink"], q.dtype, (None, None))
    fresh = finish(result, lse, args["attn_sink"], q.dtype, (None, None))
    inside = covered(args["cu_q"], q.shape[0])
    out[0].copy_(torch.where(inside[:, None, None], fresh[0], out[0]))
    out[1].copy_(torch.where(inside, fresh[1], out[1]))
    return out[0], out[1]
