"""Dense Flash MLA on the CPU: decode and prefill, request by request (deepinfer_cpu.attention does the work)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deepinfer.hal.device import Stream
from deepinfer.hal.types import YES, DeviceProps, Support
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout
from deepinfer.ops.flash_mla.portable_dense import finish
from deepinfer.ops.flash_mla.portable_ragged import deliver, key_lengths
from deepinfer.ops.flash_mla.segments import cut
from deepinfer.registry import Call, Kernel, Plan
from deepinfer_cpu import attention
from deepinfer_cpu.attention import ROWS, Rows, aligned, attend, attend_block, attend_request, by_row
from deepinfer_cpu.product import filled

Outputs = tuple[torch.Tensor | None, ...]


def _short_requests(
    cache: torch.Tensor, layout: Layout, wide: torch.Tensor, rows: Rows, b: int
) -> Callable[[int, list[int], int], bool] | None:
    """A function that does request r in one span if its blocks are in a plain, dense cache.

    Here the number of calls decides, so everything that does not depend on the request is cut up once.
    """
    page, width = cache.shape[1:]
    if layout.quantised or not b or not cache.is_contiguous() or wide[0].numel() > ROWS * width:
        return None
    flat, narrow = cache.view(-1, width), cache.dtype is not torch.float32
    last = cache.shape[0] - 1
    qs = wide.view(b, -1, width).unbind(0)
    outs = rows.out.view(b, -1, rows.out.shape[1]).unbind(0)
    tops, shares = rows.top.view(b, -1).unbind(0), rows.share.view(b, -1).unbind(0)

    def attend_short(r: int, ids: list[int], n: int) -> bool:
        first = ids[0]
        if min(ids) < 0 or max(ids) > last:
            return False
        if ids == list(range(first, first + len(ids))):
            block = flat.narrow(0, first * page, n)
        else:
            block = cache.index_select(0, torch.tensor(ids)).view(-1, width).narrow(0, 0, n)
        attend_block(qs[r], block.float() if narrow else block, None, outs[r], tops[r], shares[r])
        return True

    return attend_short


class DenseKernel(Kernel):
    """What decode and prefill share."""

    allocates = True
    batch_invariant = True
    sources = ("kernels/flash_mla.py", "attention.py", "product.py")

    def supports(self, props: DeviceProps, call: Call) -> Support:
        return aligned(call["q"].shape[-1], call["d_v"])


class CpuDecode(DenseKernel):
    """flash_mla.decode, request by request."""

    op = "flash_mla.decode"
    name = "cpu_dense_decode"

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Outputs, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        q, cache, table, lens, sink, name, d_v, causal, scale = args
        b, tokens, heads, d = q.shape
        blocks, page, _ = cache.shape
        layout = LAYOUTS[name]
        wide = torch.mul(q if q.dtype is torch.float32 else q.float(), scale).contiguous()
        used = tokens * heads
        whole = filled(wide.view(b, used, d))  # here, so that no product has to do it by itself
        room = whole.shape[1]
        rows = Rows(b * room, d_v, cleared=False)
        limit = table.shape[1] * page if blocks else 0
        lengths = [min(max(n, 0), limit) for n in lens.tolist()]
        reach = -(-max(lengths, default=0) // page)
        short = _short_requests(cache, layout, whole, rows, b) if tokens == 1 or not causal else None
        for r, (n, ids) in enumerate(zip(lengths, table.narrow(1, 0, reach).tolist(), strict=True)):
            ids = ids[: -(-n // page)]
            if short is None or not 0 < n <= attention.SPAN or not short(r, ids, n):
                rows.clear(slice(r * room, (r + 1) * room))
                attend_request(wide[r], cache, layout, ids, n, causal, rows, r * room)
        lse, made = rows.lse().view(b, room), rows.out.view(b, room, d_v)
        if room > used:
            lse, made = lse.narrow(1, 0, used), made.narrow(1, 0, used)
        return finish(made.view(b, tokens, heads, d_v), lse.view(b, tokens, heads), sink, q.dtype, out)


class CpuPrefill(DenseKernel):
    """flash_mla.prefill over latent rows or a paged cache, segment by segment."""

    op = "flash_mla.prefill"
    name = "cpu_dense_prefill"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        if call["v"] is not None:
            return Support.no("keys per head: the portable version multiplies all heads in one batch already")
        return super().supports(props, call)

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Outputs, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        q, kv, _, cu_q, cu_k, table, lens, sink, name, d_v, causal, scale = args
        total, heads, _ = q.shape
        wide = torch.mul(q.float(), scale).contiguous()
        rows = Rows(total * heads, d_v)
        named = {
            "q": q, "kv": kv, "cu_q": cu_q, "cu_k": cu_k, "block_table": table, "seq_lens": lens, "attn_sink": sink,
        }
        counts = key_lengths(named)[0].tolist()
        starts, lengths = (edge.tolist() for edge in cut(cu_q, total))
        first_key = [0] * len(counts) if cu_k is None else cut(cu_k, kv.shape[0])[0].tolist()
        for r, (start, n_q, n) in enumerate(zip(starts, lengths, counts, strict=True)):
            part, at = wide[start : start + n_q], start * heads
            if table is not None:
                n = n if kv.shape[0] else 0
                ids = table[r, : -(-n // kv.shape[1])].tolist()
                attend_request(part, kv, LAYOUTS[name], ids, n, causal, rows, at)
            else:
                attend(part, by_row(kv[first_key[r] : first_key[r] + n]), n, causal, rows, at)
        return deliver(rows.out.view(total, heads, d_v), rows.lse().view(total, heads), named, out)


class CpuCacheWrite(Kernel):
    """flash_mla.kv_cache_write of float32 rows: one copy of all rows whose slots the host has looked at."""

    op = "flash_mla.kv_cache_write"
    name = "cpu_cache_write_f32"
    allocates = True

    def supports(self, props: DeviceProps, call: Call) -> Support:
        cache = call["kv_cache"]
        if call["rows"].dtype is not torch.float32 or cache.dtype is not torch.float32:
            return Support.no("rows and cache must be float32")
        return YES if cache.contiguous else Support.no("the cache must be contiguous")

    def run(
        self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: Outputs, workspace: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        cache, rows, slots, _ = args
        capacity, listed = cache.shape[0] * cache.shape[1], slots.tolist()
        if not listed or not capacity:
            return ()
        if min(listed) < 0 or max(listed) >= capacity:
            kept = [i for i, slot in enumerate(listed) if 0 <= slot < capacity]
            rows, slots = rows[kept], slots[kept]
        cache.view(capacity, cache.shape[2]).index_copy_(0, slots if slots.dtype is torch.int64 else slots.long(), rows)
        return ()


KERNELS: list[Kernel] = [CpuDecode(), CpuPrefill(), CpuCacheWrite()]
