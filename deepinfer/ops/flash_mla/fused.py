"""Contract of `flash_mla.sparse_attention_fused`: rotate, attend to chosen slots, rotate back, quantise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla import fused_cases, portable_sparse, rules, values
from deepinfer.ops.flash_mla.attend import Token, attend, rounding
from deepinfer.ops.flash_mla.codec import encode_rows
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.ops.flash_mla.rotate import rotate
from deepinfer.ops.flash_mla.sparse_decode import POOL_PARAMS, check_pool_values, pool_keys, sparse_cost
from deepinfer.ops.flash_mla.tolerances import attention
from deepinfer.ops.quant.codec import e4m3_decode, ue8m0_decode
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

WIDTH, ROTATED, GROUP = 512, 64, 32
FLOOR = 1e-4  # of a group's largest value, see the contract


@register
class SparseAttentionFused(OpSpec):
    """Sparse attention from un-rotated queries to a quantised result, in one step.

    q [T, h, 512] bf16 | f32, not rotated; positions [T] int32 | int64; cos_sin [P, 64] f32: 32 cosines, then 32 sines
    per position; kv_cache and the optional second pool as in flash_mla.sparse_decode with indices [T, K] and
    topk_length [T]; all 512 channels of a row are its value.

    1. the last 64 channels of q are rotated at the token's position, pairs (2i, 2i+1); positions are clamped to the
       table; 2. attention as in sparse_decode, sink included; 3. the last 64 channels of the result are rotated back
       (sine negated); 4. every 32 channels are quantised: amax at least 1e-4, scale amax / 448 rounded up to a power
       of two, payload e4m3 rounded to nearest even.

    Results: out [T, h, 512] e4m3 and scale [T, h, 16] UE8M0 bytes in plain channel order; lse [h, T] f32, natural log.
    A token without keys, or with logits of -inf alone: out 0, lse -inf. The suite
    compares dequantised values, and scales to within one step.
    """

    name = "flash_mla.sparse_attention_fused"
    params = (
        Param("q"), Param("kv_cache"), Param("indices"), Param("positions"), Param("cos_sin"), *POOL_PARAMS,
        Param("attn_sink", Kind.OPT_TENSOR), Param("format", Kind.STR), Param("extra_format", Kind.OPT_STR),
        Param("softmax_scale", Kind.FLOAT),
    )
    returns = ("out", "scale", "lse")

    def check(self, call: Call) -> None:
        q, indices, table = call["q"], call["indices"], call["cos_sin"]
        rules.query(self.name, q, 3, "[T,h,512]")
        checks.dim(self.name, "q", q, 2, WIDTH)
        rules.attended_cache(self.name, "kv_cache", call["kv_cache"], call["format"], q)
        tokens = q.shape[0]
        checks.rank(self.name, "indices", indices, 2, "[T,K]")
        rules.ints(self.name, "indices", indices, (tokens, indices.shape[1]), "[T,K]")
        rules.ints(self.name, "topk_length", call["topk_length"], (tokens,), "[T]")
        rules.extra_pool(self.name, call, (tokens,))
        rules.ints(self.name, "extra_topk_length", call["extra_topk_length"], (tokens,), "[T]")
        rules.ints(self.name, "positions", call["positions"], (tokens,), "[T]")
        checks.rank(self.name, "cos_sin", table, 2, "[P,64]")
        checks.dtype(self.name, "cos_sin", table, (torch.float32,))
        checks.dim(self.name, "cos_sin", table, 1, ROTATED)
        if table.shape[0] < 1:
            raise invalid(f"{self.name}: cos_sin.shape[0]", 0, "the table must have a row", nearest=1)
        rules.sink(self.name, call["attn_sink"], q.shape[1])
        rules.scale(self.name, call["softmax_scale"])

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        last = args["cos_sin"].shape[0] - 1
        values.within(self.name, "positions", args["positions"], 0, last, "a row of cos_sin")
        check_pool_values(self.name, args)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        q = call["q"]
        tokens, heads, _ = q.shape
        return (
            TensorMeta.dense(q.shape, torch.float8_e4m3fn, q.device),
            TensorMeta.dense((tokens, heads, WIDTH // GROUP), torch.uint8, q.device),
            TensorMeta.dense((heads, tokens), torch.float32, q.device),
        )

    def reference(self, args: Args) -> Tensors:
        """The un-quantised result, the scale bytes that belong to it, and lse."""
        q, table = args["q"].double(), args["cos_sin"].double()
        out, lse = self._each_token(args, rotate(q, args["positions"], table), attend, -torch.inf)
        out = rotate(out, args["positions"], table, inverse=True)
        scale = encode_rows(out.flatten(0, 1), LAYOUTS["v41_fp8"]).scales
        return out, scale.view(*q.shape[:2], WIDTH // GROUP).double(), lse

    def rounding(self, args: Args) -> tuple[torch.Tensor | None, ...]:
        """Both rotations add what the absolute values of their products can; the quantiser adds a quarter."""
        if args["q"].dtype is torch.bfloat16:
            return None, None, None
        q, positions, table = args["q"].double().abs(), args["positions"], args["cos_sin"].double().abs()
        out, lse = self._each_token(args, _rotate_sizes(q, positions, table), rounding, 0.0)
        out = 1.25 * _rotate_sizes(out, positions, table)
        groups = (*q.shape[:2], WIDTH // GROUP, GROUP)
        amax, error = self.reference(args)[0].abs().view(groups).amax(-1), out.view(groups).amax(-1)
        return out, torch.log2((amax + error).clamp(min=FLOOR) / (amax - error).clamp(min=FLOOR)).nan_to_num(0.0), lse

    def _each_token(
        self, args: Args, turned: torch.Tensor, token: Token, empty: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, heads, _ = turned.shape
        out = torch.zeros(tokens, heads, WIDTH, dtype=torch.float64)
        lse = torch.full((heads, tokens), empty, dtype=torch.float64)
        for t in range(tokens):
            keys = pool_keys(args, (t,))
            out[t], lse[:, t], _ = token(turned[t], keys, keys, args["softmax_scale"], args["attn_sink"])
        return out, lse

    def comparable(self, args: Args, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        scale = ue8m0_decode(outputs["scale"]).double()
        groups = e4m3_decode(outputs["out"]).double().view(*scale.shape, GROUP)
        return dict(outputs) | {"out": (groups * scale[..., None]).flatten(-2), "scale": outputs["scale"].double()}

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        return portable_sparse.sparse_attention_fused(args, out)

    def cost(self, call: Call) -> Cost:
        return sparse_cost(call, WIDTH + WIDTH // GROUP)

    def cases(self) -> Iterable[Case]:
        return fused_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return fused_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        if output == "scale":  # bytes: one power of two beside the reference's is as good
            return Tolerance(abs=1.01, cos=1e-3)
        return attention(self.name, torch.bfloat16, output)

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return fused_cases.poison(args, generator)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return fused_cases.batch_variants(args)


def _rotate_sizes(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """An upper bound of |rotate(...)| for every sign of its terms; x and table are absolute values."""
    one_way, other_way = (rotate(x, positions, table, inverse=inverse).abs() for inverse in (False, True))
    return torch.maximum(one_way, other_way)
