"""Contract of `flash_mla.merge_states`: join attention results over disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla import merge_cases, rules, values
from deepinfer.ops.flash_mla.online import sink_share
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

# One rounding to bf16 of a weighted mean; float32 a handful of roundings.
BF16 = Tolerance(abs=1e-6, rel=2.0**-7, cos=1e-5)
F32 = Tolerance(abs=1e-6, rel=1e-5, cos=1e-10)


@register
class MergeStates(OpSpec):
    """Joins n attention states (out, lse) over disjoint key sets into the state over their union.

    outs [n, *, t, h, d] bf16 | f32 and lses [n, *, h, t] f32 are stacked results of the attention ops (head and token
    dimensions of lse stand the other way round, as those ops return them); attn_sink [h] f32 or None is applied once,
    to the merged result. With m = log sum exp lses: out = sum_i exp(lse_i - m) * out_i, lse = m.

    lse is the natural log; an empty state is (anything, -inf) and is the exact identity: its out is not looked at.
    n = 0, or only empty states, gives (0, -inf). Associative and commutative to rounding.
    """

    name = "flash_mla.merge_states"
    params = (Param("outs"), Param("lses"), Param("attn_sink", Kind.OPT_TENSOR))
    returns = ("out", "lse")

    def check(self, call: Call) -> None:
        outs, lses = call["outs"], call["lses"]
        checks.dtype(self.name, "outs", outs, rules.QUERY_DTYPES)
        checks.dtype(self.name, "lses", lses, (torch.float32,))
        if outs.ndim < 4:
            raise invalid(f"{self.name}: outs", list(outs.shape), "must have 4 or more dimensions [n,...,t,h,d]")
        n, *lead, tokens, heads, _ = outs.shape
        checks.shape(self.name, "lses", lses, (n, *lead, heads, tokens), "[n,...,h,t] for outs [n,...,t,h,d]")
        rules.sink(self.name, call["attn_sink"], heads)

    def check_values(self, args: Args) -> None:
        values.no_nan(self.name, "attn_sink", args["attn_sink"])
        bad = args["lses"].isnan() | (args["lses"] == torch.inf)
        if bool(bad.any()):
            at = [int(i) for i in bad.nonzero()[0]]
            raise invalid(
                f"{self.name}: lses{at}", float(args["lses"][tuple(at)]), "must be finite, or -inf for no key", "-inf"
            )

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        outs, lses = call["outs"], call["lses"]
        return (
            TensorMeta.dense(outs.shape[1:], outs.dtype, outs.device),
            TensorMeta.dense(lses.shape[1:], lses.dtype, lses.device),
        )

    def reference(self, args: Args) -> Tensors:
        outs, lses = args["outs"].double(), args["lses"].double()
        if outs.shape[0] == 0:
            return torch.zeros(outs.shape[1:], dtype=torch.float64), torch.full(lses.shape[1:], -torch.inf).double()
        lse = torch.logsumexp(lses, dim=0)
        empty = lse == -torch.inf
        shares = torch.exp(lses - torch.where(empty, torch.zeros_like(lse), lse)).transpose(-1, -2)[..., None]
        out = torch.where(shares == 0, torch.zeros_like(outs), shares * outs).sum(0)
        sink = args["attn_sink"]
        if sink is not None:
            share = torch.sigmoid(lse - sink.double()[:, None])
            out = torch.where(empty.transpose(-1, -2)[..., None], 0.0, out * share.transpose(-1, -2)[..., None])
        return out, lse

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        outs, lses, sink = args["outs"], args["lses"], args["attn_sink"]
        n = outs.shape[0]
        top = lses.amax(0) if n else lses.new_full(lses.shape[1:], -torch.inf)
        base = torch.where(top == -torch.inf, torch.zeros_like(top), top)
        total = torch.zeros_like(top)
        merged = torch.zeros(outs.shape[1:], dtype=torch.float32, device=outs.device)
        for i in range(n):
            weight = (lses[i] - base).exp()
            total += weight
            turned = weight.transpose(-1, -2)[..., None]
            merged += torch.where(turned == 0, torch.zeros_like(merged), outs[i].float() * turned)
        lse = torch.where(total == 0, torch.full_like(top, -torch.inf), base + total.log())
        share = 1 / torch.where(total == 0, torch.ones_like(total), total)
        if sink is not None:
            share = share * sink_share(lse, sink[:, None])
        merged *= share.transpose(-1, -2)[..., None]
        return (
            merged.to(outs.dtype) if out[0] is None else out[0].copy_(merged),
            lse if out[1] is None else out[1].copy_(lse),
        )

    def cost(self, call: Call) -> Cost:
        outs, lses = call["outs"], call["lses"]
        n = max(outs.shape[0], 1)
        return Cost(2.0 * outs.numel, float(outs.nbytes + lses.nbytes + (outs.nbytes + lses.nbytes) // n))

    def cases(self) -> Iterable[Case]:
        return merge_cases.cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return merge_cases.error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return BF16 if output == "out" and args["outs"].dtype is torch.bfloat16 else F32

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return merge_cases.poison(args)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        return merge_cases.batch_variants(args)
