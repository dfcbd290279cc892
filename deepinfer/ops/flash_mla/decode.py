"""Contract of `flash_mla.decode`: dense attention of a few query tokens per request to a paged latent cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.ops import checks
from deepinfer.ops.flash_mla import decode_cases, portable_dense, rules, values
from deepinfer.ops.flash_mla.attend import Token, attend, page_slots, read, rounding
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.tolerances import attention
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class Decode(OpSpec):
    """Dense latent attention over a paged cache, one KV head shared by all query heads.

    q [b, s_q, h, d_qk] bf16 | f32; kv_cache [blocks, page, d_qk or bytes] in `format`; block_table [b, max_blocks] and
    seq_lens [b] int32 | int64; attn_sink [h] f32 or None. A key's first d_v channels are its value.

    - seq_lens include the s_q query tokens and are clamped to [0, max_blocks * page]. Query i sees key j iff
      j <= seq_len - s_q + i (causal) or j < seq_len (else).
    - Table entries beyond a length are never read; a block id outside [0, blocks) makes its keys invisible.
    - out [b, s_q, h, d_v] in q's dtype; lse [b, h, s_q] f32, natural log. A row without keys, or with logits of -inf
      alone: out 0, lse -inf. A logit of +inf or NaN makes its row NaN (docs/design/0009-infinite-logits.md).
    - The sink multiplies out by 1 / (1 + exp(sink - lse)) and changes nothing else; it may be +-inf.
    """

    name = "flash_mla.decode"
    params = (
        Param("q"), Param("kv_cache"), Param("block_table"), Param("seq_lens"), Param("attn_sink", Kind.OPT_TENSOR),
        Param("format", Kind.STR), Param("d_v", Kind.INT), Param("causal", Kind.BOOL),
        Param("softmax_scale", Kind.FLOAT),
    )
    returns = ("out", "lse")

    def check(self, call: Call) -> None:
        q = call["q"]
        rules.query(self.name, q, 4, "[b,s_q,h,d_qk]")
        rules.attended_cache(self.name, "kv_cache", call["kv_cache"], call["format"], q)
        rules.value_width(self.name, call["d_v"], q.shape[-1])
        table = call["block_table"]
        checks.rank(self.name, "block_table", table, 2, "[b,max_blocks]")
        rules.ints(self.name, "block_table", table, (q.shape[0], table.shape[1]), "[b,max_blocks]")
        rules.ints(self.name, "seq_lens", call["seq_lens"], (q.shape[0],), "[b]")
        rules.sink(self.name, call["attn_sink"], q.shape[2])
        rules.scale(self.name, call["softmax_scale"])

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        values.paged(self.name, args["kv_cache"], args["block_table"], args["seq_lens"])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        return rules.attention_outputs(call["q"], call["d_v"])

    def reference(self, args: Args) -> Tensors:
        return self._each_token(args, attend, -torch.inf)

    def rounding(self, args: Args) -> Tensors:
        return self._each_token(args, rounding, 0.0)

    def _each_token(self, args: Args, token: Token, empty: float) -> Tensors:
        q, cache, layout = args["q"], args["kv_cache"], LAYOUTS[args["format"]]
        b, s_q, heads, _ = q.shape
        out = torch.zeros(b, s_q, heads, args["d_v"], dtype=torch.float64)
        lse = torch.full((b, heads, s_q), empty, dtype=torch.float64)
        for r in range(b):
            slots, exists = page_slots(args["block_table"][r], int(args["seq_lens"][r]), *cache.shape[:2])
            for i in range(s_q):
                end = max(slots.shape[0] - s_q + i + 1, 0) if args["causal"] else slots.shape[0]
                keys = read(cache, layout, slots[:end][exists[:end]])
                out[r, i], lse[r, :, i], _ = token(
                    q[r, i], keys, keys[:, : args["d_v"]], args["softmax_scale"], args["attn_sink"]
                )
        return out, lse

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return portable_dense.decode(args, out)

    def cost(self, call: Call) -> Cost:
        q, cache, table = call["q"], call["kv_cache"], call["block_table"]
        b, s_q, heads, d = q.shape
        keys = table.shape[1] * cache.shape[1]
        row = rules.row_bytes(LAYOUTS[call["format"]], cache)
        result = b * s_q * heads * (call["d_v"] * q.dtype.itemsize + 4)
        return Cost(2.0 * b * s_q * heads * keys * (d + call["d_v"]), q.nbytes + float(b * keys * row) + result)

    def cases(self) -> Iterable[Case]:
        return decode_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return decode_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return attention(self.name, args["q"].dtype, output)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return decode_cases.poison(args, generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return decode_cases.batch_variants(args)
