"""The attention ops on the device: sparse and dense, prefill and decode. One kernel file serves all of them.

Invariants: a job's rows are heads of one token, or tokens of one request, so results do not depend on the batch unless
keys are split; split keys are merged in fixed order. Queries are bf16 or float32, and plain rows have their type.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.hal import Device, DeviceProps, Stream, Support
from deepinfer.hal.types import YES
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Call, Plan, TensorMeta
from deepinfer_ascend950.ops.base import AscendKernel
from deepinfer_ascend950.ops.merge import SOURCES as MERGE_SOURCES
from deepinfer_ascend950.ops.merge import merge_arguments
from deepinfer_ascend950.ops.mla import (
    CUT_ROWS,
    HEADS,
    MAX_VALUE,
    MAX_WIDTH,
    PAGED,
    ROWS,
    SPARSE,
    Pool,
    Problem,
    Rows,
    jobs_tokens,
    paged_pool,
    plain_rows,
)

SOURCES: tuple[str, ...] = (
    "kernels/mla_attend.asc",
    "kernels/mla_vector.h",
    "kernels/mla_args.h",
    "kernels/codec.h",
    "kernels/convert.h",
    "kernels/deepinfer.h",
)
ENTRIES = {torch.bfloat16: "mla_attend", torch.float32: "mla_attend_f32"}


def common_reasons(call: Call) -> list[str]:
    """Why the kernel cannot take these queries, values and outputs."""
    q, d_v, sink, reasons = call["q"], call["d_v"], call["attn_sink"], []
    if q.shape[-1] > MAX_WIDTH:
        reasons.append(f"q: width {q.shape[-1]}, the buffers of a core hold {MAX_WIDTH}")
    if q.shape[-2] > 1 and q.stride[-2] <= 0:
        reasons.append("q: heads repeat")
    if d_v > MAX_VALUE:
        reasons.append(f"d_v: {d_v}, the buffers of a core hold {MAX_VALUE}")
    if call.out is not None and d_v > 1 and call.out[0].stride[-1] != 1:
        reasons.append("out: last stride must be 1")
    if sink is not None and sink.shape[0] > 1 and sink.stride[0] != 1:
        reasons.append("attn_sink: not contiguous")
    return reasons


def row_reasons(call: Call, cache: str, form: str) -> list[str]:
    """Why the rows of a cache do not fit the queries."""
    if call[cache] is None or call["q"].dtype is torch.bfloat16 or not LAYOUTS[call[form]].quantised:
        return []
    return [f"{cache}: quantised rows are expanded to bf16, which float32 queries do not multiply"]


class Attention(AscendKernel):
    """What the ops share: loading and launching."""

    source = "mla_attend"
    sources = SOURCES
    batch_invariant = True

    def plan(self, device: Device, call: Call) -> Plan:
        return Plan(state=self.load(device, ENTRIES[call["q"].dtype]))

    def start(self, plan: Plan, stream: Stream, problem: Problem) -> None:
        """Launch on as many cores as there are jobs for."""
        plan.state.launch(stream, problem.jobs, problem.pack())


class SparsePrefill(Attention):
    """Sparse prefill over an unquantised [S, d] tensor."""

    op = "flash_mla.sparse_prefill"
    name = "ascend950_mla_sparse_prefill"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call)
        return Support.no(*reasons) if reasons else YES

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, kv, indices, lengths, sink, _, scale = args
        result, lse, top = out
        if result.numel() == 0 and lse.numel() == 0:
            return
        rows, size = kv.shape[0], kv.element_size()
        cut = plain_rows(kv.shape[1], kv.stride(0) * size, size)
        pool = Pool(kv, indices.unsqueeze(1), lengths, cut, max(rows, 1), rows, 0, indices.shape[1])
        # [h, T] results as [b = T, h, s = 1]
        lse, top = (x.t().unsqueeze(-1) for x in (lse, top))
        self.start(plan, stream, Problem(q.unsqueeze(1), (pool,), result.unsqueeze(1), lse, SPARSE, scale, sink, top))


class SparseDecode(Attention):
    """Sparse decode over one or two paged pools."""

    op = "flash_mla.sparse_decode"
    name = "ascend950_mla_sparse_decode"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call) + row_reasons(call, "kv_cache", "format")
        reasons += row_reasons(call, "extra_kv_cache", "extra_format")
        return Support.no(*reasons) if reasons else YES

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, indices, lengths, extra, extra_indices, extra_lengths, sink, name, extra_name, _, scale = args
        result, lse = out
        if result.numel() == 0:
            return
        pools = [paged_pool(cache, name, indices, lengths, indices.shape[2])]
        if extra is not None:
            pools.append(paged_pool(extra, extra_name, extra_indices, extra_lengths, extra_indices.shape[2]))
        self.start(plan, stream, Problem(q, tuple(pools), result, lse, SPARSE, scale, sink))


class DenseDecode(Attention):
    """Dense decode over a paged cache of short requests: keys are not split."""

    op = "flash_mla.decode"
    name = "ascend950_mla_decode"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call) + row_reasons(call, "kv_cache", "format")
        if capacity(call) >= 2 * PART_KEYS:
            reasons.append(f"block_table: {capacity(call)} keys are split over cores from {2 * PART_KEYS} on")
        return Support.no(*reasons) if reasons else YES

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, table, lengths, sink, name, _, causal, scale = args
        result, lse = out
        if result.numel() == 0:
            return
        pool = paged_pool(cache, name, table, lengths, table.shape[1] * cache.shape[1])
        self.start(plan, stream, Problem(q, (pool,), result, lse, PAGED, scale, sink, causal=causal))


class SplitDecode(Attention):
    """Dense decode over a paged cache whose keys are split into as many parts as fill the cores.

    Every part leaves a float32 state; the states are merged in the order of the keys, so a run repeats to the bit. The
    number of parts depends on the batch, hence no claim that results do not.
    """

    op = "flash_mla.decode"
    name = "ascend950_mla_decode_split"
    sources = (*SOURCES, *MERGE_SOURCES)
    batch_invariant = False

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = common_reasons(call) + row_reasons(call, "kv_cache", "format")
        if capacity(call) < 2 * PART_KEYS:
            reasons.append(f"block_table: {capacity(call)} keys are too few to split")
        return Support.no(*reasons) if reasons else YES

    def plan(self, device: Device, call: Call) -> Plan:
        q = call["q"]
        b, s_q, heads, _ = q.shape
        parts = parts_of(b, s_q, heads, capacity(call), device.props.compute_units or 1)
        partial = b * s_q * heads * (call["d_v"] + 1) * 4 * parts if parts > 1 else 0
        merge = self.load_from(device, "merge_states", "merge_states")
        return Plan(partial, (self.load(device, ENTRIES[q.dtype]), merge, parts))

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, cache, table, lengths, sink, name, d_v, causal, scale = args
        (attend, merge, parts), (result, lse) = plan.state, out
        if result.numel() == 0:
            return
        pool = paged_pool(cache, name, table, lengths, table.shape[1] * cache.shape[1])
        if parts == 1:
            whole = Problem(q, (pool,), result, lse, PAGED, scale, sink, causal=causal)
            attend.launch(stream, whole.jobs, whole.pack())
            return
        b, s_q, heads, _ = q.shape
        floats, rows = workspace.view(torch.float32), parts * b * s_q * heads
        outs = floats[: rows * d_v].view(parts, b, s_q, heads, d_v)
        lses = floats[rows * d_v : rows * (d_v + 1)].view(parts, b, heads, s_q)
        split = Problem(q, (pool,), outs, lses, PAGED, scale, causal=causal, parts=parts)
        attend.launch(stream, split.jobs, split.pack())
        merge.launch(stream, b * s_q * heads, merge_arguments(outs, lses, sink, result, lse))


PART_KEYS = 256  # of a part, at least: four blocks of keys repay a state of 2 KB per head


def capacity(call: Call) -> int:
    """Keys that a row of the block table can name."""
    keys: int = call["block_table"].shape[1] * call["kv_cache"].shape[1]
    return keys


def parts_of(b: int, s_q: int, heads: int, keys: int, cores: int) -> int:
    """Parts that the keys of every request are split into, so that jobs times parts fill the cores."""
    jobs = max(b * -(-s_q // jobs_tokens(heads)) * -(-heads // ROWS), 1)
    return max(min(cores // jobs, keys // PART_KEYS), 1)


class Prefill(Attention):
    """Dense prefill of ragged requests: latent rows, a paged cache, or keys per head."""

    op = "flash_mla.prefill"
    name = "ascend950_mla_prefill"

    def supports(self, props: DeviceProps, call: Call) -> Support:
        kv, v, reasons = call["kv"], call["v"], common_reasons(call)
        if call["block_table"] is not None:
            reasons += row_reasons(call, "kv", "format")
        for name, meta in (("kv", kv), ("v", v)):
            if call["block_table"] is None and meta is not None and meta.shape[-1] > 1 and meta.stride[-1] != 1:
                reasons.append(f"{name}: a row is not contiguous")
        if v is not None:
            reasons += _per_head_reasons(kv, v)
        return Support.no(*reasons) if reasons else YES

    def run(self, plan: Plan, stream: Stream, args: tuple[Any, ...], out: tuple[Any, ...], workspace: Any) -> None:
        q, kv, v, cu_q, cu_k, table, lengths, sink, name, _, causal, scale = args
        result, lse = out
        if q.numel() == 0 or cu_q.shape[0] < 2:
            return
        if table is not None:
            pool = paged_pool(kv, name, table, lengths, table.shape[1] * kv.shape[1])
        else:
            pool = Pool(kv, None, None, _cut_rows(kv, v), max(kv.shape[0], 1), kv.shape[0], 0, 0)
        mode = PAGED if table is not None else CUT_ROWS if v is None else HEADS
        problem = Problem(
            q.unsqueeze(0), (pool,), result.unsqueeze(0), lse.unsqueeze(0), mode, scale, sink,
            causal=causal, cu_q=cu_q, cu_k=cu_k, values=v,
        )  # fmt: skip
        self.start(plan, stream, problem)


def _per_head_reasons(k: TensorMeta, v: TensorMeta) -> list[str]:
    width, step = k.shape[-1] + v.shape[-1], 32 // k.dtype.itemsize
    if k.shape[-1] % step or width > MAX_WIDTH:
        rule = f"keys must be a multiple of {step} and both together fit {MAX_WIDTH}"
        return [f"v: keys of {k.shape[-1]} and values of {v.shape[-1]} channels, {rule}"]
    return []


def _cut_rows(kv: torch.Tensor, v: torch.Tensor | None) -> Rows:
    """Latent rows, or rows of a key and its value."""
    size = kv.element_size()
    if v is None:
        return plain_rows(kv.shape[1], kv.stride(0) * size, size)
    width = kv.shape[2] * size
    pieces = ((0, kv.stride(0) * size, width, 0), (0, v.stride(0) * size, v.shape[2] * size, width))
    return Rows(pieces, 3 if size == 4 else 0, 0, 0, 0, 0, 0, 0, -(-(width + v.shape[2] * size) // 32) * 32)


KERNELS = (SparsePrefill(), SparseDecode(), DenseDecode(), SplitDecode(), Prefill())
