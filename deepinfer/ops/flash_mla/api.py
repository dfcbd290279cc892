"""Public Flash MLA functions: argument conversion only; the contracts are in the specs.

Common rules. One KV row per position serves as key and, by its first d_v channels, as value. lse is float32 and the
natural log of the sum of exponentials of the scaled logits; a row without keys has out 0 and lse -inf, so results over
disjoint keys merge exactly with `merge_states`. `attn_sink[h]` multiplies out by 1 / (1 + exp(sink - lse)) and changes
nothing else. `validate=True` also checks values on the device (it may synchronise). `out=` takes the result tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla.cache_read import KvCacheRead
from deepinfer.ops.flash_mla.cache_write import KvCacheWrite
from deepinfer.ops.flash_mla.decode import Decode
from deepinfer.ops.flash_mla.formats import KVFormat, format_name
from deepinfer.ops.flash_mla.fused import SparseAttentionFused
from deepinfer.ops.flash_mla.merge import MergeStates
from deepinfer.ops.flash_mla.prefill import Prefill
from deepinfer.ops.flash_mla.sparse_decode import SparseDecode
from deepinfer.ops.flash_mla.sparse_prefill import SparsePrefill
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import Op, get_spec

Pair = tuple[torch.Tensor, torch.Tensor]
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

_decode = Op(get_spec(Decode.name))
_prefill = Op(get_spec(Prefill.name))
_sparse_decode = Op(get_spec(SparseDecode.name))
_sparse_prefill = Op(get_spec(SparsePrefill.name))
_fused = Op(get_spec(SparseAttentionFused.name))
_merge = Op(get_spec(MergeStates.name))
_write = Op(get_spec(KvCacheWrite.name))
_read = Op(get_spec(KvCacheRead.name))


def decode(
    q: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, *,
    format: KVFormat | str = KVFormat.BF16, d_v: int = 512, causal: bool = True, softmax_scale: float | None = None,
    attn_sink: torch.Tensor | None = None, out: Pair | None = None, validate: bool = False,
) -> Pair:
    """Dense latent attention of a few query tokens per request to a paged cache.

    Args:
        q: [b, s_q, h, d_qk] bf16 or f32.
        kv_cache: [blocks, page, d_qk] in q's dtype, or uint8 [blocks, page, bytes] of a quantised format.
        block_table: [b, max_blocks] int32 or int64; entries past a length are never read, and a block id outside
            [0, blocks) makes its keys invisible.
        seq_lens: [b] int32 or int64, the s_q query tokens included; clamped to [0, max_blocks * page].
        format: what the cache's bytes mean; never inferred from a shape.
        d_v: value width, 1 .. d_qk.
        causal: query i sees key j iff j <= seq_len - s_q + i; otherwise all j < seq_len.
        softmax_scale: finite; default d_qk ** -0.5.
        attn_sink: [h] f32, may be +-inf.

    Returns:
        out [b, s_q, h, d_v] in q's dtype, lse [b, h, s_q] f32.

    Raises:
        InvalidArgument: shapes, dtypes or layouts break the contract.

    Source: DeepSeek-V2 (arXiv:2405.04434, section 2.1), absorbed form; contract:
        `deepinfer.ops.flash_mla.decode.Decode`.

    Example:
        >>> cache = torch.zeros(2, 4, 8); q = torch.ones(1, 1, 2, 8)
        >>> table, lens = torch.tensor([[1, 0]]), torch.tensor([5])
        >>> out, lse = decode(q, cache, table, lens, format=KVFormat.F32, d_v=8)
        >>> out.shape, [round(x, 4) for x in lse.exp().flatten().tolist()]
        (torch.Size([1, 1, 2, 8]), [5.0, 5.0])
    """
    scale = _scale(_decode, q, softmax_scale)
    return _pair(_decode(
        q, kv_cache, block_table, seq_lens, attn_sink, format_name(_decode.name, "format", format), d_v, causal, scale,
        out=out, validate=validate,
    ))


def prefill(
    q: torch.Tensor, kv: torch.Tensor, cu_q: torch.Tensor, *, cu_k: torch.Tensor | None = None,
    v: torch.Tensor | None = None, block_table: torch.Tensor | None = None, seq_lens: torch.Tensor | None = None,
    format: KVFormat | str = KVFormat.BF16, d_v: int = 512, causal: bool = True, softmax_scale: float | None = None,
    attn_sink: torch.Tensor | None = None, out: Pair | None = None, validate: bool = False,
) -> Pair:
    """Attention of ragged query segments, each to the keys of its own request.

    Args:
        q: [T, h, d_qk] bf16 or f32; segment r is rows cu_q[r] .. cu_q[r+1]-1.
        kv: latent rows [S, d_qk] (with cu_k), a paged cache (with block_table, seq_lens, format), or keys per head
            [S, h, d_qk] (with v and cu_k).
        cu_q: [b+1] int32 or int64; a falling offset means an empty segment.
        cu_k: [b+1], cuts the rows of kv like cu_q those of q; not for a paged cache.
        v: [S, h, d_v], values per head.
        block_table: [b, max_blocks]; makes kv a paged cache.
        seq_lens: [b], keys of each request, the segment's query tokens (its last rows) included.
        format: format of a paged cache; not used otherwise.
        d_v: value width; taken from v when that is given.
        causal: bottom-right: query i of n_q sees key j of n_k iff j <= n_k - n_q + i.
        softmax_scale: finite; default d_qk ** -0.5.
        attn_sink: [h] f32, may be +-inf.

    Returns:
        out [T, h, d_v] in q's dtype, lse [h, T] f32. Rows of no segment are not defined.

    Raises:
        InvalidArgument: shapes, dtypes or the mix of arguments break the contract.

    Source: DeepSeek-V2 (arXiv:2405.04434, section 2.1); contract:
        `deepinfer.ops.flash_mla.prefill.Prefill`.

    Example:
        >>> q, kv = torch.ones(3, 1, 4), torch.zeros(3, 4)
        >>> cu = torch.tensor([0, 2, 3])
        >>> out, lse = prefill(q, kv, cu, cu_k=cu, d_v=4)
        >>> [round(x, 4) for x in lse.exp().flatten().tolist()]
        [1.0, 2.0, 1.0]
    """
    scale = _scale(_prefill, q, softmax_scale)
    name = None if block_table is None else format_name(_prefill.name, "format", format)
    width = v.shape[-1] if isinstance(v, torch.Tensor) and v.ndim else d_v
    return _pair(_prefill(
        q, kv, v, cu_q, cu_k, block_table, seq_lens, attn_sink, name, width, causal, scale, out=out, validate=validate,
    ))


def sparse_decode(
    q: torch.Tensor, kv_cache: torch.Tensor, indices: torch.Tensor, *, format: KVFormat | str, d_v: int = 512,
    topk_length: torch.Tensor | None = None, extra_kv_cache: torch.Tensor | None = None,
    extra_format: KVFormat | str | None = None, extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None, softmax_scale: float | None = None,
    attn_sink: torch.Tensor | None = None, out: Pair | None = None, validate: bool = False,
) -> Pair:
    """Latent attention of each query token to the cached rows that its index list names, in one pool or two.

    Args:
        q: [b, s_q, h, d_qk] bf16 or f32.
        kv_cache: as in `decode`, any format of width d_qk.
        indices: [b, s_q, K] int32 or int64 flat slots (block * page + offset). Any value outside the pool is ignored
            wherever it stands; repeated ones count each time.
        format: format of kv_cache.
        d_v: value width, 1 .. d_qk.
        topk_length: [b] or [b, s_q]: entries used of each list, clamped to [0, K].
        extra_kv_cache, extra_format, extra_indices: a second pool, attended jointly; given together.
        extra_topk_length: entries used of the second lists.
        softmax_scale: finite; default d_qk ** -0.5.
        attn_sink: [h] f32, may be +-inf.

    Returns:
        out [b, s_q, h, d_v] in q's dtype, lse [b, h, s_q] f32 over both pools.

    Raises:
        InvalidArgument: shapes, dtypes or the mix of arguments break the contract.

    Source: DeepSeek-V3.2's sparse attention; contract: `deepinfer.ops.flash_mla.sparse_decode.SparseDecode`.

    Example:
        >>> q, cache = torch.ones(1, 1, 1, 4), torch.zeros(2, 2, 4)
        >>> out, lse = sparse_decode(q, cache, torch.tensor([[[3, -1, 99, 0]]]), format=KVFormat.F32, d_v=4)
        >>> round(lse.exp().item(), 4)
        2.0
    """
    scale = _scale(_sparse_decode, q, softmax_scale)
    return _pair(_sparse_decode(
        q, kv_cache, indices, topk_length, extra_kv_cache, extra_indices, extra_topk_length, attn_sink,
        format_name(_sparse_decode.name, "format", format), _optional_name(_sparse_decode, extra_format), d_v, scale,
        out=out, validate=validate,
    ))


def sparse_prefill(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, *, topk_length: torch.Tensor | None = None,
    d_v: int = 512, softmax_scale: float | None = None, attn_sink: torch.Tensor | None = None,
    out: Triple | None = None, validate: bool = False,
) -> Triple:
    """Latent attention of each query token to the rows of kv that its index list names.

    Args:
        q: [T, h, d_qk] bf16 or f32.
        kv: [S, d_qk] of q's dtype.
        indices: [T, K] int32 or int64 row numbers; any value outside [0, S) is ignored wherever it stands.
        topk_length: [T]: entries used of each list, clamped to [0, K].
        d_v: value width, 1 .. d_qk.
        softmax_scale: finite; default d_qk ** -0.5.
        attn_sink: [h] f32, may be +-inf.

    Returns:
        out [T, h, d_v] in q's dtype, lse [h, T] f32, max_logits [h, T] f32 (largest scaled logit, -inf without keys).

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: DeepSeek-V3.2's sparse attention; contract: `deepinfer.ops.flash_mla.sparse_prefill.SparsePrefill`.

    Example:
        >>> q, kv = torch.ones(1, 1, 2), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> out, lse, top = sparse_prefill(q, kv, torch.tensor([[1, -1]]), d_v=2, softmax_scale=1.0)
        >>> out.tolist(), top.item()
        ([[[0.0, 3.0]]], 3.0)
    """
    scale = _scale(_sparse_prefill, q, softmax_scale)
    result = _sparse_prefill(q, kv, indices, topk_length, attn_sink, d_v, scale, out=out, validate=validate)
    return result[0], result[1], result[2]


def sparse_attention_fused(
    q: torch.Tensor, kv_cache: torch.Tensor, indices: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, *,
    format: KVFormat | str, topk_length: torch.Tensor | None = None, extra_kv_cache: torch.Tensor | None = None,
    extra_format: KVFormat | str | None = None, extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None, softmax_scale: float | None = None,
    attn_sink: torch.Tensor | None = None, out: Triple | None = None, validate: bool = False,
) -> tuple[Quantized, torch.Tensor]:
    """Rotate the last 64 query channels, attend to chosen slots, rotate the result back, quantise it per 32 channels.

    Args:
        q: [T, h, 512] bf16 or f32, not rotated.
        kv_cache: as in `decode`, any format of width 512; all 512 channels are the value.
        indices: [T, K] int32 or int64 flat slots, as in `sparse_decode`.
        positions: [T] int32 or int64, clamped to the rows of cos_sin.
        cos_sin: [P, 64] f32: 32 cosines, then 32 sines, for the channel pairs (2i, 2i+1).
        format: format of kv_cache.
        topk_length: [T]: entries used of each list.
        extra_kv_cache, extra_format, extra_indices, extra_topk_length: the second pool, as in `sparse_decode`.
        softmax_scale: finite; default 512 ** -0.5.
        attn_sink: [h] f32, may be +-inf.
        out: (data e4m3 [T, h, 512], scale uint8 [T, h, 16], lse f32 [h, T]) or None.
        validate: read device values (slots, indices, lengths) and raise for those out of range.

    Returns:
        the result as `Quantized` (e4m3 [T, h, 512], UE8M0 [T, h, 16], block (1, 32), plain channel order), and lse
        [h, T] f32.

    Raises:
        InvalidArgument: shapes, dtypes or the mix of arguments break the contract.

    Source: a composition of this library's ops; contract: `deepinfer.ops.flash_mla.fused.SparseAttentionFused`.

    Example:
        >>> q, cache = torch.ones(1, 2, 512), torch.ones(1, 4, 512)
        >>> table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
        >>> rows, at = torch.tensor([[2, 3]]), torch.tensor([0])
        >>> made, lse = sparse_attention_fused(q, cache, rows, at, table, format=KVFormat.F32)
        >>> made.shape, made.scale.shape
        ((1, 2, 512), torch.Size([1, 2, 16]))
    """
    scale = _scale(_fused, q, softmax_scale)
    data, scales, lse = _fused(
        q, kv_cache, indices, positions, cos_sin, topk_length, extra_kv_cache, extra_indices, extra_topk_length,
        attn_sink, format_name(_fused.name, "format", format), _optional_name(_fused, extra_format), scale,
        out=out, validate=validate,
    )
    return Quantized(data, scales, (1, 32), "ue8m0"), lse


def merge_states(
    outs: torch.Tensor | Sequence[torch.Tensor], lses: torch.Tensor | Sequence[torch.Tensor], *,
    attn_sink: torch.Tensor | None = None, out: Pair | None = None, validate: bool = False,
) -> Pair:
    """Join attention results over disjoint sets of keys.

    Args:
        outs: [n, ..., t, h, d] bf16 or f32, or a sequence of n results [..., t, h, d].
        lses: [n, ..., h, t] f32, natural log, or a sequence; heads before tokens, as the attention ops return them.
            -inf marks an empty state, whose out is not looked at.
        attn_sink: [h] f32, applied once, to the merged result (so not in the parts).

    Returns:
        out [..., t, h, d], lse [..., h, t].

    Raises:
        InvalidArgument: shapes or dtypes break the contract, or an empty sequence.

    Source: online softmax (arXiv:1805.02867); contract: `deepinfer.ops.flash_mla.merge.MergeStates`.

    Example:
        >>> part, empty = torch.full((1, 1, 2), 5.0), torch.zeros(1, 1, 2)
        >>> out, lse = merge_states([part, empty], [torch.zeros(1, 1), torch.full((1, 1), -torch.inf)])
        >>> out.tolist(), lse.item()
        ([[[5.0, 5.0]]], 0.0)
    """
    stacked = _stack("outs", outs), _stack("lses", lses)
    return _pair(_merge(*stacked, attn_sink, out=out, validate=validate))


def kv_cache_write(
    kv_cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, *, format: KVFormat | str, validate: bool = False
) -> None:
    """Write latent rows into slots of a cache, in place, quantised as the format asks.

    Args:
        kv_cache: the cache, see `cache_shape`; modified.
        rows: [T, d] bf16 or f32.
        slots: [T] int32 or int64 flat slots (block * page + offset), distinct; -1 or any value outside skips the row.
        format: format of kv_cache.
        validate: read device values (slots, indices, lengths) and raise for those out of range.

    Returns:
        None; kv_cache is written in place.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: byte layouts as in `deepinfer.ops.flash_mla.formats`; contract:
        `deepinfer.ops.flash_mla.cache_write.KvCacheWrite`.

    Example:
        >>> cache = torch.zeros(2, 2, 4)
        >>> kv_cache_write(cache, torch.ones(2, 4), torch.tensor([3, -1]), format=KVFormat.F32)
        >>> cache.sum(dim=-1).tolist()
        [[0.0, 0.0], [0.0, 4.0]]
    """
    _write(kv_cache, rows, slots, format_name(_write.name, "format", format), validate=validate)


def kv_cache_read(
    kv_cache: torch.Tensor, slots: torch.Tensor, *, format: KVFormat | str, dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None, validate: bool = False,
) -> torch.Tensor:
    """Rows of a cache, dequantised.

    Args:
        kv_cache: the cache, see `cache_shape`.
        slots: [n] int32 or int64 flat slots; any value outside the cache gives a row of zeros.
        format: format of kv_cache.
        dtype: of the result: float32 or bfloat16.
        out: result [n, d] of `dtype`, or None to allocate.
        validate: read device values (slots, indices, lengths) and raise for those out of range.

    Returns:
        [n, d] rows.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: byte layouts as in `deepinfer.ops.flash_mla.formats`; contract:
        `deepinfer.ops.flash_mla.cache_read.KvCacheRead`.

    Example:
        >>> kv_cache_read(torch.ones(1, 2, 3), torch.tensor([1, -1]), format=KVFormat.F32).tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    name = format_name(_read.name, "format", format)
    (rows,) = _read(kv_cache, slots, name, dtype, out=None if out is None else (out,), validate=validate)
    return rows


def slots_of(block_table: torch.Tensor, positions: torch.Tensor, *, page: int, blocks: int) -> torch.Tensor:
    """Flat slots of key positions: what `sparse_decode` and `kv_cache_write` take.

    Args:
        block_table: [b, max_blocks] int32 or int64.
        positions: [b, ...] int32 or int64 positions inside each request; a negative one, one past the table, or one
            whose block id is outside [0, blocks) gives -1.
        page: tokens per block.
        blocks: blocks of the cache.

    Returns:
        [b, ...] in the dtype of block_table.

    Raises:
        InvalidArgument: page < 1, or positions do not fit block_table.

    Source: the paged layout of `kv_cache_write`; page p of a request holds positions p * page onwards.

    Example:
        >>> slots_of(torch.tensor([[5, 7, 99]]), torch.tensor([[0, 3, 4, -1, 8]]), page=2, blocks=8).tolist()
        [[10, 15, -1, -1, -1]]
    """
    checks.at_least("slots_of", "page", page, 1)
    if block_table.ndim != 2 or positions.ndim < 1 or positions.shape[0] != block_table.shape[0]:
        rule = f"must be [b, ...] for block_table [b, max_blocks] {list(block_table.shape)}"
        raise invalid("slots_of: positions", list(positions.shape), rule)
    limit = block_table.shape[1] * page
    flat = positions.reshape(positions.shape[0], -1).long()
    inside = (flat >= 0) & (flat < limit)
    safe = torch.where(inside, flat, 0)
    if limit == 0:
        return torch.full_like(positions, -1, dtype=block_table.dtype)
    block = block_table.long().gather(1, safe // page)
    inside &= (block >= 0) & (block < blocks)
    return torch.where(inside, block * page + safe % page, -1).view(positions.shape).to(block_table.dtype)


def _pair(result: tuple[torch.Tensor, ...]) -> Pair:
    return result[0], result[1]


def _scale(op: Op, q: object, value: float | None) -> float:
    if value is not None:
        return checks.number(op.name, "softmax_scale", value)
    if not isinstance(q, torch.Tensor) or q.ndim < 1 or q.shape[-1] < 1:
        return 1.0  # the op's own check names what is wrong with q
    return 1.0 / math.sqrt(q.shape[-1])


def _optional_name(op: Op, value: KVFormat | str | None) -> str | None:
    return None if value is None else format_name(op.name, "extra_format", value)


def _stack(arg: str, parts: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    if isinstance(parts, torch.Tensor):
        return parts
    shapes = {tuple(part.shape) for part in parts if isinstance(part, torch.Tensor)}
    if len(parts) == 0 or len(shapes) != 1 or not all(isinstance(part, torch.Tensor) for part in parts):
        rule = "must be one tensor [n, ...] or a non-empty sequence of tensors of one shape"
        raise invalid(f"{_merge.name}: {arg}", f"{len(parts)} parts of shapes {sorted(shapes)}", rule)
    return torch.stack(tuple(parts))
