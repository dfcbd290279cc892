"""Metadata rules that the attention and cache ops share. Each raises InvalidArgument naming the op's argument."""

from __future__ import annotations

import math

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla.formats import LAYOUTS, Layout, format_name
from deepinfer.registry import Call, TensorMeta

QUERY_DTYPES = (torch.bfloat16, torch.float32)


def query(op: str, meta: TensorMeta, rank: int, letters: str) -> None:
    """Queries: bf16 or f32, last dimension contiguous."""
    checks.rank(op, "q", meta, rank, letters)
    checks.dtype(op, "q", meta, QUERY_DTYPES)
    if meta.shape[-1] < 1 or meta.shape[-2] < 1:
        raise invalid(f"{op}: q", list(meta.shape), "heads and d_qk must be >= 1")
    checks.last_contiguous(op, "q", meta)


def cache(op: str, arg: str, meta: TensorMeta, name: str, format_arg: str = "format") -> Layout:
    """A cache tensor in format `name`; returns its layout."""
    layout = LAYOUTS[format_name(op, format_arg, name)]
    checks.rank(op, arg, meta, 3, "[blocks, page, d or bytes]")
    if meta.dtype is not layout.dtype:
        hint = f"; name the cache's {format_arg} (V32_FP8, ...)" if meta.dtype is torch.uint8 else ""
        raise InvalidArgument(
            f"{op}: {arg}: got {meta.dtype}, {format_arg} {layout.format.name} is stored as {layout.dtype}{hint}"
        )
    if meta.shape[1] < 1:
        raise invalid(f"{op}: {arg}.shape[1]", meta.shape[1], "page must be >= 1", nearest=1)
    if layout.quantised:
        checks.dim(op, arg, meta, 2, layout.token_bytes, f"bytes per token of {layout.format.name}")
    checks.last_contiguous(op, arg, meta)
    if layout.split and meta.shape[1] > 1 and meta.stride[1] != layout.token_bytes:
        raise invalid(
            f"{op}: {arg}.stride(1)", meta.stride[1],
            f"a block of the split format {layout.format.name} must be contiguous", nearest=layout.token_bytes,
        )
    return layout


def attended_cache(op: str, arg: str, meta: TensorMeta, name: str, q: TensorMeta, format_arg: str = "format") -> Layout:
    """A cache whose rows are attended to with queries `q`: width d_qk, and plain f32 or bf16 rows match q's dtype."""
    layout = cache(op, arg, meta, name, format_arg)
    if layout.quantised:
        checks.dim(op, "q", q, q.ndim - 1, layout.width, f"= the width of {arg} in {layout.format.name}")
        return layout
    checks.dim(op, arg, meta, 2, q.shape[-1], "= d_qk of q")
    if q.dtype is not layout.dtype:
        raise invalid(f"{op}: q", str(q.dtype), f"dtype must be that of {arg}", nearest=str(layout.dtype))
    return layout


def value_width(op: str, d_v: int, d_qk: int) -> None:
    """Values are the first d_v channels of a key row."""
    checks.between(op, "d_v", d_v, 1, d_qk)


def ints(op: str, arg: str, meta: TensorMeta | None, shape: tuple[int, ...], letters: str) -> None:
    """An optional index tensor of exactly `shape`, int32 or int64, any strides."""
    if meta is not None:
        checks.dtype(op, arg, meta, checks.INDEX_DTYPES)
        checks.shape(op, arg, meta, shape, letters)


def lengths(op: str, arg: str, meta: TensorMeta | None, b: int, s_q: int) -> None:
    """top-k lengths of decode: [b], or [b, s_q]."""
    if meta is None:
        return
    checks.dtype(op, arg, meta, checks.INDEX_DTYPES)
    if tuple(meta.shape) not in ((b,), (b, s_q)):
        raise invalid(f"{op}: {arg}", list(meta.shape), f"shape must be [{b}] or [{b}, {s_q}] ([b] or [b, s_q])")


def sink(op: str, meta: TensorMeta | None, heads: int) -> None:
    """Sink logits: float32 [h]."""
    if meta is not None:
        checks.dtype(op, "attn_sink", meta, (torch.float32,))
        checks.shape(op, "attn_sink", meta, (heads,), "[h]")


def extra_pool(op: str, call: Call, shape: tuple[int, ...]) -> Layout | None:
    """The optional second pool: cache, format and indices come together; lengths need them."""
    given = [name for name in ("extra_kv_cache", "extra_indices", "extra_format") if call[name] is not None]
    if not given:
        if call["extra_topk_length"] is not None:
            rule = "needs extra_kv_cache, extra_indices and extra_format"
            raise invalid(f"{op}: extra_topk_length", "a tensor", rule)
        return None
    if len(given) < 3:
        rule = "extra_kv_cache, extra_indices, extra_format go together"
        raise invalid(f"{op}: extra_kv_cache", f"only {given}", rule)
    q, cached, indices = call["q"], call["extra_kv_cache"], call["extra_indices"]
    layout = attended_cache(op, "extra_kv_cache", cached, call["extra_format"], q, "extra_format")
    checks.rank(op, "extra_indices", indices, len(shape) + 1)
    ints(op, "extra_indices", indices, (*shape, indices.shape[-1]), "(rows as q, extra K)")
    return layout


def row_bytes(layout: Layout, meta: TensorMeta) -> int:
    """Bytes of one cached row."""
    return layout.token_bytes or meta.shape[2] * meta.dtype.itemsize


def attention_outputs(q: TensorMeta, d_v: int) -> tuple[TensorMeta, TensorMeta]:
    """out [..., t, h, d_v] in q's dtype and lse [..., h, t] float32 of queries [..., t, h, d_qk]."""
    *lead, tokens, heads, _ = q.shape
    return (
        TensorMeta.dense((*lead, tokens, heads, d_v), q.dtype, q.device),
        TensorMeta.dense((*lead, heads, tokens), torch.float32, q.device),
    )


def scale(op: str, value: float) -> None:
    """The softmax scale is a finite number (the sign is free)."""
    if not math.isfinite(value):
        raise invalid(f"{op}: softmax_scale", value, "must be finite", nearest="d_qk ** -0.5")


def result_dtype(op: str, dtype: torch.dtype) -> None:
    """Dtype of dequantised rows."""
    if dtype not in QUERY_DTYPES:
        raise invalid(f"{op}: dtype", str(dtype), "must be torch.bfloat16 or torch.float32", nearest="torch.float32")
