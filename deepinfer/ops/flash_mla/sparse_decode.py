"""Contract of `flash_mla.sparse_decode`: attention to chosen slots of one or two paged pools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.ops import checks
from deepinfer.ops.flash_mla import portable_sparse, rules, sparse_decode_cases, values
from deepinfer.ops.flash_mla.attend import Token, attend, read, rounding, visible_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.tolerances import attention
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

POOL_PARAMS = (
    Param("topk_length", Kind.OPT_TENSOR), Param("extra_kv_cache", Kind.OPT_TENSOR),
    Param("extra_indices", Kind.OPT_TENSOR), Param("extra_topk_length", Kind.OPT_TENSOR),
)


@register
class SparseDecode(OpSpec):
    """Latent attention of each query token to the cached rows that its index list names.

    q [b, s_q, h, d_qk] bf16 | f32; kv_cache [blocks, page, d_qk or bytes] in `format`; indices [b, s_q, K] int32 |
    int64; topk_length [b] or [b, s_q], or None; attn_sink [h] f32 or None. A second pool (extra_kv_cache,
    extra_format, extra_indices [b, s_q, K2], extra_topk_length) is attended jointly with the first.

    - An index is a flat slot: block * page + offset. Any index < 0 or >= blocks * page is ignored wherever it stands;
      entries at positions >= topk_length (clamped to [0, K]) are ignored whatever they hold. Repeated indices count
      each time.
    - out [b, s_q, h, d_v] in q's dtype, lse [b, h, s_q] f32 over both pools, natural log. A token without keys, or
      with logits of -inf alone: out 0, lse -inf. The sink multiplies out by 1 / (1 + exp(sink - lse)).
    """

    name = "flash_mla.sparse_decode"
    params = (
        Param("q"), Param("kv_cache"), Param("indices"), *POOL_PARAMS, Param("attn_sink", Kind.OPT_TENSOR),
        Param("format", Kind.STR), Param("extra_format", Kind.OPT_STR), Param("d_v", Kind.INT),
        Param("softmax_scale", Kind.FLOAT),
    )
    returns = ("out", "lse")

    def check(self, call: Call) -> None:
        q, indices = call["q"], call["indices"]
        rules.query(self.name, q, 4, "[b,s_q,h,d_qk]")
        rules.attended_cache(self.name, "kv_cache", call["kv_cache"], call["format"], q)
        rules.value_width(self.name, call["d_v"], q.shape[-1])
        b, s_q = q.shape[:2]
        checks.rank(self.name, "indices", indices, 3, "[b,s_q,K]")
        rules.ints(self.name, "indices", indices, (b, s_q, indices.shape[2]), "[b,s_q,K]")
        rules.lengths(self.name, "topk_length", call["topk_length"], b, s_q)
        rules.extra_pool(self.name, call, (b, s_q))
        rules.lengths(self.name, "extra_topk_length", call["extra_topk_length"], b, s_q)
        rules.sink(self.name, call["attn_sink"], q.shape[2])
        rules.scale(self.name, call["softmax_scale"])

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        check_pool_values(self.name, args)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        return rules.attention_outputs(call["q"], call["d_v"])

    def reference(self, args: Args) -> Tensors:
        return self._each_token(args, attend, -torch.inf)

    def rounding(self, args: Args) -> Tensors:
        return self._each_token(args, rounding, 0.0)

    def _each_token(self, args: Args, token: Token, empty: float) -> Tensors:
        b, s_q, heads, _ = args["q"].shape
        out = torch.zeros(b, s_q, heads, args["d_v"], dtype=torch.float64)
        lse = torch.full((b, heads, s_q), empty, dtype=torch.float64)
        for r in range(b):
            for i in range(s_q):
                keys = pool_keys(args, (r, i))
                out[r, i], lse[r, :, i], _ = token(
                    args["q"][r, i], keys, keys[:, : args["d_v"]], args["softmax_scale"], args["attn_sink"]
                )
        return out, lse

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return portable_sparse.sparse_decode(args, out)

    def cost(self, call: Call) -> Cost:
        return sparse_cost(call, call["d_v"] * call["q"].dtype.itemsize)

    def cases(self) -> Iterable[Case]:
        return sparse_decode_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return sparse_decode_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return attention(self.name, args["q"].dtype, output)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return sparse_decode_cases.poison(args, generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return sparse_decode_cases.batch_variants(args)


def pool_keys(args: Args, at: tuple[int, ...]) -> torch.Tensor:
    """float64 rows that the token at index `at` sees: first pool, then second, in list order."""
    parts = []
    for prefix, cache in (("", args["kv_cache"]), ("extra_", args["extra_kv_cache"])):
        if cache is not None:
            chosen, lengths = args[f"{prefix}indices"][at], args[f"{prefix}topk_length"]
            length = chosen.shape[0] if lengths is None else int(lengths[at[: lengths.ndim]])
            slots = visible_slots(chosen, length, cache.shape[0] * cache.shape[1])
            parts.append(read(cache, LAYOUTS[args[f"{prefix}format"]], slots))
    return torch.cat(parts)


def check_pool_values(op: str, args: Args) -> None:
    """Indices and lengths of both pools in range."""
    for prefix, cache in (("", args["kv_cache"]), ("extra_", args["extra_kv_cache"])):
        if cache is not None:
            capacity = cache.shape[0] * cache.shape[1]
            values.slots(op, f"{prefix}indices", args[f"{prefix}indices"], capacity, args[f"{prefix}topk_length"])


def sparse_cost(call: Call, out_row: int) -> Cost:
    """Worst case: every entry names another row; `out_row` bytes of result per head and token."""
    q = call["q"]
    pairs, nbytes = 0, q.nbytes + q.numel // q.shape[-1] * (out_row + 4)
    for prefix, cache in (("", call["kv_cache"]), ("extra_", call["extra_kv_cache"])):
        if cache is not None:
            indices = call[f"{prefix}indices"]
            pairs += indices.numel
            distinct = min(indices.numel, cache.shape[0] * cache.shape[1])
            nbytes += indices.nbytes + distinct * rules.row_bytes(LAYOUTS[call[f"{prefix}format"]], cache)
    d_v = call.args.get("d_v", q.shape[-1])
    return Cost(2.0 * pairs * q.shape[-2] * (q.shape[-1] + d_v), float(nbytes))
