"""Contract of `flash_mla.sparse_prefill`: attention of many tokens to chosen rows of one un-quantised tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.ops import checks
from deepinfer.ops.flash_mla import portable_sparse, rules, sparse_prefill_cases, values
from deepinfer.ops.flash_mla.attend import Token, attend, rounding, visible_slots
from deepinfer.ops.flash_mla.tolerances import attention
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class SparsePrefill(OpSpec):
    """Latent attention of each query token to the rows that its index list names.

    q [T, h, d_qk] bf16 | f32, kv [S, d_qk] of q's dtype, indices [T, K] int32 | int64 row numbers, topk_length [T] or
    None, attn_sink [h] f32 or None. Any index < 0 or >= S is ignored, as are entries at positions >= topk_length
    (clamped to [0, K]); repeated indices count each time. The caller offsets indices when it packs several requests.

    out [T, h, d_v] in q's dtype; lse [h, T] and max_logits [h, T] f32: natural log of the sum of exponentials, and
    the largest, of the scaled logits; the sink touches neither. A token without keys, or with logits of
    -inf alone: out 0, lse and max_logits -inf.
    """

    name = "flash_mla.sparse_prefill"
    params = (
        Param("q"), Param("kv"), Param("indices"), Param("topk_length", Kind.OPT_TENSOR),
        Param("attn_sink", Kind.OPT_TENSOR), Param("d_v", Kind.INT), Param("softmax_scale", Kind.FLOAT),
    )
    returns = ("out", "lse", "max_logits")

    def check(self, call: Call) -> None:
        q, kv, indices = call["q"], call["kv"], call["indices"]
        rules.query(self.name, q, 3, "[T,h,d_qk]")
        checks.rank(self.name, "kv", kv, 2, "[S,d_qk]")
        checks.dim(self.name, "kv", kv, 1, q.shape[-1], "= d_qk of q")
        checks.dtype(self.name, "kv", kv, (q.dtype,))
        checks.last_contiguous(self.name, "kv", kv)
        checks.rank(self.name, "indices", indices, 2, "[T,K]")
        rules.ints(self.name, "indices", indices, (q.shape[0], indices.shape[1]), "[T,K]")
        rules.ints(self.name, "topk_length", call["topk_length"], (q.shape[0],), "[T]")
        rules.sink(self.name, call["attn_sink"], q.shape[1])
        rules.value_width(self.name, call["d_v"], q.shape[-1])
        rules.scale(self.name, call["softmax_scale"])

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        values.slots(self.name, "indices", args["indices"], args["kv"].shape[0], args["topk_length"])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        out, lse = rules.attention_outputs(call["q"], call["d_v"])
        return out, lse, lse

    def reference(self, args: Args) -> Tensors:
        return self._each_token(args, attend, -torch.inf)

    def rounding(self, args: Args) -> Tensors:
        return self._each_token(args, rounding, 0.0)

    def _each_token(self, args: Args, token: Token, empty: float) -> Tensors:
        q, kv, lengths = args["q"], args["kv"], args["topk_length"]
        tokens, heads, _ = q.shape
        out = torch.zeros(tokens, heads, args["d_v"], dtype=torch.float64)
        lse = torch.full((heads, tokens), empty, dtype=torch.float64)
        top = lse.clone()
        for t in range(tokens):
            length = args["indices"].shape[1] if lengths is None else int(lengths[t])
            keys = kv[visible_slots(args["indices"][t], length, kv.shape[0])].double()
            out[t], lse[:, t], top[:, t] = token(
                q[t], keys, keys[:, : args["d_v"]], args["softmax_scale"], args["attn_sink"]
            )
        return out, lse, top

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return portable_sparse.sparse_prefill(args, out)

    def cost(self, call: Call) -> Cost:
        q, kv, indices = call["q"], call["kv"], call["indices"]
        rows = min(indices.numel, kv.shape[0]) * kv.shape[1] * kv.dtype.itemsize
        result = q.shape[0] * q.shape[1] * (call["d_v"] * q.dtype.itemsize + 8)
        flops = 2.0 * indices.numel * q.shape[1] * (q.shape[2] + call["d_v"])
        return Cost(flops, float(q.nbytes + indices.nbytes + rows + result))

    def cases(self) -> Iterable[Case]:
        return sparse_prefill_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return sparse_prefill_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return attention(self.name, args["q"].dtype, output)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return sparse_prefill_cases.poison(args, generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return sparse_prefill_cases.batch_variants(args)
