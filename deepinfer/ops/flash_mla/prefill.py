"""Contract of `flash_mla.prefill`: attention of ragged query segments to ragged, paged or per-head keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla import portable_ragged, prefill_cases, rules, values
from deepinfer.ops.flash_mla.attend import Token, attend, page_slots, read, rounding
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.segments import covered, cut
from deepinfer.ops.flash_mla.tolerances import attention
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class Prefill(OpSpec):
    """Attention of query segments to the keys of their own request.

    q [T, h, d_qk] bf16 | f32, cut into b segments by cu_q [b+1]. The keys come in one of three forms:

    - latent rows: kv [S, d_qk] of q's dtype, cut by cu_k [b+1]; values are the first d_v channels;
    - paged: kv = cache [blocks, page, ...] in `format`, block_table [b, max_blocks], seq_lens [b]. seq_lens include
      the segment's query tokens, which are the request's last rows;
    - per head: kv = k [S, h, d_qk] and v [S, h, d_v], both of q's dtype, cut by cu_k.

    Causal is bottom-right: query i of n_q sees key j of n_k iff j <= n_k - n_q + i. Offsets are clamped to the number
    of rows and read as their running maximum, so a falling offset means an empty segment. out [T, h, d_v] in q's
    dtype, lse [h, T] f32 (natural log). Rows without keys: out 0, lse -inf. Rows of no segment are not written.
    seq_lens, block ids, the sink and logits that are not finite mean what they mean in flash_mla.decode.
    """

    name = "flash_mla.prefill"
    params = (
        Param("q"), Param("kv"), Param("v", Kind.OPT_TENSOR), Param("cu_q"), Param("cu_k", Kind.OPT_TENSOR),
        Param("block_table", Kind.OPT_TENSOR), Param("seq_lens", Kind.OPT_TENSOR), Param("attn_sink", Kind.OPT_TENSOR),
        Param("format", Kind.OPT_STR), Param("d_v", Kind.INT), Param("causal", Kind.BOOL),
        Param("softmax_scale", Kind.FLOAT),
    )
    returns = ("out", "lse")

    def check(self, call: Call) -> None:
        q, cu_q = call["q"], call["cu_q"]
        rules.query(self.name, q, 3, "[T,h,d_qk]")
        checks.rank(self.name, "cu_q", cu_q, 1, "[b+1]")
        checks.dtype(self.name, "cu_q", cu_q, checks.INDEX_DTYPES)
        if cu_q.shape[0] < 1:
            raise invalid(f"{self.name}: cu_q", 0, "must have b + 1 entries", nearest=1)
        rules.sink(self.name, call["attn_sink"], q.shape[1])
        rules.scale(self.name, call["softmax_scale"])
        self._forbid(call)
        if call["block_table"] is not None:
            self._check_paged(call, cu_q.shape[0] - 1)
        else:
            self._check_rows(call)

    def _forbid(self, call: Call) -> None:
        paged, per_head = call["block_table"] is not None, call["v"] is not None
        wanted = ("block_table", "seq_lens", "format") if paged else ("cu_k", "v") if per_head else ("cu_k",)
        for name in ("cu_k", "v", "block_table", "seq_lens", "format"):
            given = call[name] is not None
            if given != (name in wanted):
                form = "a paged cache" if paged else "keys per head" if per_head else "latent rows"
                rule = f"must {'not ' if given else ''}be given with {form} (that form takes {', '.join(wanted)})"
                raise invalid(f"{self.name}: {name}", "a value" if given else None, rule)

    def _check_paged(self, call: Call, b: int) -> None:
        q, table = call["q"], call["block_table"]
        rules.attended_cache(self.name, "kv", call["kv"], call["format"], q)
        rules.value_width(self.name, call["d_v"], q.shape[-1])
        checks.rank(self.name, "block_table", table, 2, "[b,max_blocks]")
        rules.ints(self.name, "block_table", table, (b, table.shape[1]), "[b,max_blocks]")
        rules.ints(self.name, "seq_lens", call["seq_lens"], (b,), "[b]")

    def _check_rows(self, call: Call) -> None:
        q, kv, v = call["q"], call["kv"], call["v"]
        rules.ints(self.name, "cu_k", call["cu_k"], call["cu_q"].shape, "[b+1]")
        if v is None:
            checks.rank(self.name, "kv", kv, 2, "[S,d_qk] (or give v or block_table)")
            rules.value_width(self.name, call["d_v"], q.shape[-1])
        else:
            checks.shape(self.name, "kv", kv, (kv.shape[0] if kv.ndim else 0, *q.shape[1:]), "[S,h,d_qk]")
            checks.shape(self.name, "v", v, (kv.shape[0], q.shape[1], call["d_v"]), "[S,h,d_v]")
            checks.dtype(self.name, "v", v, (q.dtype,))
            checks.last_contiguous(self.name, "v", v)
        checks.dim(self.name, "kv", kv, -1, q.shape[-1], "= d_qk of q")
        checks.dtype(self.name, "kv", kv, (q.dtype,))
        checks.last_contiguous(self.name, "kv", kv)

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        values.offsets(self.name, "cu_q", args["cu_q"], args["q"].shape[0])
        if args["block_table"] is None:
            values.offsets(self.name, "cu_k", args["cu_k"], args["kv"].shape[0])
        else:
            values.paged(self.name, args["kv"], args["block_table"], args["seq_lens"])

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        return rules.attention_outputs(call["q"], call["d_v"])

    def reference(self, args: Args) -> Tensors:
        return self._each_token(args, attend, -torch.inf)

    def rounding(self, args: Args) -> Tensors:
        return self._each_token(args, rounding, 0.0)

    def _each_token(self, args: Args, token: Token, empty: float) -> Tensors:
        q, d_v = args["q"], args["d_v"]
        total, heads, _ = q.shape
        out = torch.zeros(total, heads, d_v, dtype=torch.float64)
        lse = torch.full((heads, total), empty, dtype=torch.float64)
        for r, (start, n_q) in enumerate(zip(*(edge.tolist() for edge in cut(args["cu_q"], total)), strict=True)):
            keys, v, exists = self._keys(args, r)
            for i in range(n_q):
                end = max(exists.shape[0] - n_q + i + 1, 0) if args["causal"] else exists.shape[0]
                seen = exists[:end]
                out[start + i], lse[:, start + i], _ = token(
                    q[start + i], keys[:end][seen], v[:end][seen], args["softmax_scale"], args["attn_sink"]
                )
        return out, lse

    def _keys(self, args: Args, r: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values of request r in order, float64, and which of them exist."""
        kv, v, d_v = args["kv"], args["v"], args["d_v"]
        if args["block_table"] is not None:
            slots, exists = page_slots(args["block_table"][r], int(args["seq_lens"][r]), *kv.shape[:2])
            keys = torch.full((slots.shape[0], args["q"].shape[-1]), torch.nan, dtype=torch.float64)
            keys[exists] = read(kv, LAYOUTS[args["format"]], slots[exists])
            return keys, keys[:, :d_v], exists
        start, length = (int(edge[r]) for edge in cut(args["cu_k"], kv.shape[0]))
        keys = kv[start : start + length].double()
        values_ = keys[:, :d_v] if v is None else v[start : start + length].double()
        return keys, values_, torch.ones(length, dtype=torch.bool)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return portable_ragged.prefill(args, out)

    def cost(self, call: Call) -> Cost:
        q, kv, v = call["q"], call["kv"], call["v"]
        tokens, heads, d = q.shape
        b = max(call["cu_q"].shape[0] - 1, 1)
        paged = call["block_table"] is not None
        keys = call["block_table"].shape[1] * kv.shape[1] if paged else -(-kv.shape[0] // b)
        rows = kv.nbytes + (0 if v is None else v.nbytes)
        if paged:
            rows = rules.row_bytes(LAYOUTS[call["format"]], kv) * b * keys
        pairs = tokens * keys * (0.5 if call["causal"] and keys * b == tokens else 1.0)
        result = tokens * heads * (call["d_v"] * q.dtype.itemsize + 4)
        return Cost(2.0 * heads * pairs * (d + call["d_v"]), float(q.nbytes + rows + result))

    def cases(self) -> Iterable[Case]:
        return prefill_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return prefill_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return attention(self.name if args["block_table"] is None else "flash_mla.decode", args["q"].dtype, output)

    def valid(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        inside = covered(args["cu_q"], args["q"].shape[0])
        return inside[:, None, None], inside[None]

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return prefill_cases.poison(args, generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return prefill_cases.batch_variants(args)
