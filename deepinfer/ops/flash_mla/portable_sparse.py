"""Portable sparse attention: each query token has its own list of slots, in one pool of cached rows or in two.

Invariants: nothing is read on the host; slots outside a pool and entries past a length become zero rows that no query
sees; tokens are taken in groups and keys in blocks, so memory is bounded whatever K is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.ops.flash_mla.codec import encode_rows, read_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer.ops.flash_mla.online import KEY_BLOCK, OnlineSoftmax, group_step, sink_share
from deepinfer.ops.flash_mla.portable_dense import Out, existing, finish
from deepinfer.ops.flash_mla.rotate import rotate
from deepinfer.registry.spec import Args, Tensors


@dataclass(frozen=True)
class Pool:
    """One pool of rows: cache [blocks, page, ...], slots per token indices [n, K], used entries lengths [n] or None."""

    cache: torch.Tensor
    layout: Layout
    indices: torch.Tensor
    lengths: torch.Tensor | None

    @property
    def width(self) -> int:
        """Entries to look at per token."""
        return self.indices.shape[1] if self.cache.shape[0] * self.cache.shape[1] else 0

    def load(self, tokens: slice, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Entries first .. end-1 of some tokens: keys [g, c, d] float32 and whether they exist [g, c], None = all."""
        slots = self.indices[tokens, first:end].long()
        exists = (slots >= 0) & (slots < self.cache.shape[0] * self.cache.shape[1])
        if self.lengths is not None:
            exists &= torch.arange(first, end, device=slots.device) < self.lengths[tokens, None]
        slots = torch.where(exists, slots, 0)
        keys, found = existing(read_slots(self.cache, self.layout, slots.flatten()), exists.flatten())
        return keys.view(*slots.shape, -1), None if found is None else exists


def attend_pools(
    q: torch.Tensor, scale: float, pools: Sequence[Pool], d_v: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [n, h, d] -> out [n, h, d_v], lse [n, h], max logit [n, h], float32."""
    n, heads, d = q.shape
    result = torch.zeros((n, heads, d_v), dtype=torch.float32, device=q.device)
    lse = torch.full((n, heads), -torch.inf, dtype=torch.float32, device=q.device)
    top = lse.clone()
    step = group_step(heads, max((pool.width for pool in pools), default=0), d)
    for i in range(0, n, step):
        tokens = slice(i, min(i + step, n))
        wide = q[tokens].float() * scale
        state = OnlineSoftmax(wide.shape[0], heads, d_v, q.device)
        for pool in pools:
            for first in range(0, pool.width, KEY_BLOCK):
                keys, exists = pool.load(tokens, first, min(first + KEY_BLOCK, pool.width))
                seen = None if exists is None else exists[:, None]
                state.add(torch.bmm(wide, keys.transpose(1, 2)), keys[..., :d_v], seen)
        result[tokens], lse[tokens], top[tokens] = state.result()
    return result, lse, top


def pools_of(args: Args, lead: int) -> list[Pool]:
    """The one or two pools of a call whose indices have `lead` leading dimensions (1 = tokens, 2 = b, s_q)."""
    pools = []
    for prefix, name in (("", "kv_cache"), ("extra_", "extra_kv_cache")):
        cache = args[name]
        if cache is not None:
            indices = args[f"{prefix}indices"]
            rows = indices.shape[:lead]
            lengths = args[f"{prefix}topk_length"]
            if lengths is not None:
                lengths = lengths.view(*lengths.shape, *(1,) * (lead - lengths.ndim)).expand(rows).reshape(-1)
            flat = indices.reshape(rows.numel(), indices.shape[-1])
            pools.append(Pool(cache, LAYOUTS[args[f"{prefix}format"]], flat, lengths))
    return pools


def sparse_decode(args: Args, out: Out) -> Tensors:
    """flash_mla.sparse_decode: b * s_q independent tokens."""
    q = args["q"]
    rows = q.shape[:2]
    result, lse, _ = attend_pools(
        q.reshape(rows.numel(), *q.shape[2:]), args["softmax_scale"], pools_of(args, 2), args["d_v"]
    )
    result, lse = result.view(*rows, *result.shape[1:]), lse.view(*rows, lse.shape[1])
    return finish(result, lse, args["attn_sink"], q.dtype, out)


def sparse_prefill(args: Args, out: Out) -> Tensors:
    """flash_mla.sparse_prefill: the rows kv [S, d] are one pool of a single block."""
    q, kv = args["q"], args["kv"]
    layout = LAYOUTS["f32" if kv.dtype is torch.float32 else "bf16"]
    pool = Pool(kv[None], layout, args["indices"], args["topk_length"])
    result, lse, top = attend_pools(q, args["softmax_scale"], [pool], args["d_v"])
    turned = top.T
    last = turned.contiguous() if out[2] is None else out[2].copy_(turned)
    return (*finish(result, lse, args["attn_sink"], q.dtype, out[:2]), last)


def sparse_attention_fused(args: Args, out: Out) -> Tensors:
    """flash_mla.sparse_attention_fused: rotate, attend, rotate back, quantise per 32 channels."""
    q, positions, table = args["q"], args["positions"], args["cos_sin"]
    turned = rotate(q.float(), positions, table)
    result, lse, _ = attend_pools(turned, args["softmax_scale"], pools_of(args, 1), q.shape[-1])
    return fused_outputs(result, lse, args, out)


def fused_outputs(result: torch.Tensor, lse: torch.Tensor, args: Args, out: Out) -> Tensors:
    """Sink, inverse rotation and quantisation of result [T, h, 512] with lse [T, h], float32."""
    if args["attn_sink"] is not None:
        result = result * sink_share(lse, args["attn_sink"])[..., None]
    result = rotate(result, args["positions"], args["cos_sin"], inverse=True)
    parts = encode_rows(result.flatten(0, 1), LAYOUTS["v41_fp8"])
    codes = parts.codes.view(torch.float8_e4m3fn).view(result.shape)
    made = (codes, parts.scales.view(*result.shape[:2], 16), lse.T.contiguous())
    return tuple(new if old is None else old.copy_(new) for new, old in zip(made, out, strict=True))
