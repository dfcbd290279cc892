"""Sparse Flash MLA on the CPU: token by token over the entries that exist, so masked ones cost nothing.

Invariant: a token's keys are gathered in list order, first pool before second, and blocked by their own number: its
bits depend on no other token.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import DeviceProps, Support
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.portable_dense import finish
from deepinfer.ops.flash_mla.portable_sparse import Pool, fused_outputs, pools_of
from deepinfer.ops.flash_mla.rotate import rotate
from deepinfer.registry import Call, Kernel, Plan, get_spec
from deepinfer_cpu.attention import Keys, Rows, aligned, attend, by_slot

Outputs = tuple[torch.Tensor | None, ...]


def _kept(pool: Pool) -> list[torch.Tensor]:
    """Per token the slots that it sees, in list order."""
    slots = pool.indices.long()
    seen = (slots >= 0) & (slots < pool.cache.shape[0] * pool.cache.shape[1])
    if pool.lengths is not None:
        seen &= torch.arange(slots.shape[1]) < pool.lengths[:, None]
    return list(torch.split(slots[seen], seen.sum(1).tolist()))


def _joined(first: Keys, n: int, second: Keys) -> Keys:
    """Keys 0 .. n-1 of one pool, then those of the other."""

    def keys(a: int, b: int) -> torch.Tensor:
        if b <= n:
            return first(a, b)
        if a >= n:
            return second(a - n, b - n)
        return torch.cat((first(a, n), second(0, b - n)))

    return keys


def attend_tokens(q: torch.Tensor, scale: float, pools: Sequence[Pool], d_v: int) -> Rows:
    """Every token of q [n, h, d] over its entries of the pools."""
    tokens, heads, _ = q.shape
    wide = torch.mul(q.float(), scale).contiguous()
    rows = Rows(tokens * heads, d_v)
    kept = [_kept(pool) for pool in pools]
    for t in range(tokens):
        keys = by_slot(pools[0].cache, pools[0].layout, kept[0][t])
        n = kept[0][t].shape[0]
        if len(pools) > 1 and kept[1][t].shape[0]:
            keys = _joined(keys, n, by_slot(pools[1].cache, pools[1].layout, kept[1][t]))
            n += kept[1][t].shape[0]
        attend(wide[t : t + 1], keys, n, False, rows, t * heads)
    return rows


class SparseKernel(Kernel):
    """What the sparse kernels share."""

    allocates = True
    batch_invariant = True
    sources = ("kernels/flash_mla_sparse.py", "attention.py", "product.py")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        d = call["q"].shape[-1]
        return aligned(d, call.args.get("d_v", d))

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Outputs, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        names = (param.name for param in get_spec(str(self.op)).params)
        return self.compute(dict(zip(names, args, strict=True)), out)

    @abc.abstractmethod
    def compute(self, args: dict[str, Any], out: Outputs) -> tuple[torch.Tensor, ...]:
        """The op on named arguments."""


class CpuSparseDecode(SparseKernel):
    """flash_mla.sparse_decode."""

    op = "flash_mla.sparse_decode"
    name = "cpu_sparse_decode"

    def compute(self, args: dict[str, Any], out: Outputs) -> tuple[torch.Tensor, ...]:
        q, d_v = args["q"], args["d_v"]
        b, s_q, heads, d = q.shape
        rows = attend_tokens(q.reshape(b * s_q, heads, d), args["softmax_scale"], pools_of(args, 2), d_v)
        result, lse = rows.out.view(b, s_q, heads, d_v), rows.lse().view(b, s_q, heads)
        return finish(result, lse, args["attn_sink"], q.dtype, out)


class CpuSparsePrefill(SparseKernel):
    """flash_mla.sparse_prefill."""

    op = "flash_mla.sparse_prefill"
    name = "cpu_sparse_prefill"

    def compute(self, args: dict[str, Any], out: Outputs) -> tuple[torch.Tensor, ...]:
        q, kv, d_v = args["q"], args["kv"], args["d_v"]
        tokens, heads, _ = q.shape
        layout = LAYOUTS["f32" if kv.dtype is torch.float32 else "bf16"]
        pool = Pool(kv[None], layout, args["indices"], args["topk_length"])
        rows = attend_tokens(q, args["softmax_scale"], [pool], d_v)
        top = rows.top.view(tokens, heads).T
        top = top.contiguous() if out[2] is None else out[2].copy_(top)
        result, lse = rows.out.view(tokens, heads, d_v), rows.lse().view(tokens, heads)
        return (*finish(result, lse, args["attn_sink"], q.dtype, out[:2]), top)


class CpuSparseFused(SparseKernel):
    """flash_mla.sparse_attention_fused."""

    op = "flash_mla.sparse_attention_fused"
    name = "cpu_sparse_fused"

    def compute(self, args: dict[str, Any], out: Outputs) -> tuple[torch.Tensor, ...]:
        q = args["q"]
        turned = rotate(q.float(), args["positions"], args["cos_sin"])
        rows = attend_tokens(turned, args["softmax_scale"], pools_of(args, 1), q.shape[-1])
        return fused_outputs(rows.out.view(q.shape), rows.lse().view(q.shape[:2]), args, out)


KERNELS: list[Kernel] = [CpuSparseDecode(), CpuSparsePrefill(), CpuSparseFused()]
