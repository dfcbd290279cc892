"""Contract of `moe.route`: which experts each token goes to, and with what weight."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.elementwise import sigmoid, softplus
from deepinfer.ops.moe import route_cases
from deepinfer.ops.moe.ranking import top_ids
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")
GROUP_SCORES = ("max", "top2_sum")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@register
class Route(OpSpec):
    """Choose top_k experts per token; logits [T, E] f32 | bf16 | f16 -> weights [T, K] f32, ids [T, K] int32.

    score = softmax | sigmoid | sqrt(softplus) of the logit in float32; rank = score + bias[e] (bias [E], for choosing
    only). With n_group > 1 the experts form that many equal groups in order; only the topk_group groups with the
    highest group score stay, the score being the largest rank ("max", deepseek_v2) or the sum of the two largest
    ("top2_sum", deepseek_v3) inside. The top_k highest ranks win and are listed from high to low; equal ranks go to
    the lower id (groups too). weight = score of the winner; with `renormalize` divided by (sum of the row's weights +
    eps); then times `scale`. A NaN rank counts below every number, so ids are distinct and in range whatever the
    logits; a NaN score that is chosen all the same has weight NaN.
    """

    name = "moe.route"
    params = (
        Param("logits"), Param("top_k", Kind.INT), Param("scoring", Kind.STR), Param("bias", Kind.OPT_TENSOR),
        Param("n_group", Kind.INT), Param("topk_group", Kind.INT), Param("group_score", Kind.STR),
        Param("renormalize", Kind.BOOL), Param("scale", Kind.FLOAT), Param("eps", Kind.FLOAT),
    )
    returns = ("weights", "ids")
    host_batch_invariant = True

    def check(self, call: Call) -> None:
        logits, bias = call["logits"], call["bias"]
        checks.rank(self.name, "logits", logits, 2, "[T,E]")
        checks.dtype(self.name, "logits", logits, DTYPES)
        experts = logits.shape[1]
        for name, allowed in (("scoring", SCORINGS), ("group_score", GROUP_SCORES)):
            if call[name] not in allowed:
                raise invalid(f"{self.name}: {name}", call[name], f"must be one of {allowed}", nearest=repr(allowed[0]))
        if bias is not None:
            checks.dtype(self.name, "bias", bias, DTYPES)
            checks.shape(self.name, "bias", bias, (experts,), "[E]")
        groups = call["n_group"]
        checks.at_least(self.name, "n_group", groups, 1)
        if experts % groups:
            raise invalid(f"{self.name}: n_group", groups, f"must divide E = {experts}", nearest=1)
        checks.between(self.name, "topk_group", call["topk_group"], 1, groups)
        checks.between(self.name, "top_k", call["top_k"], 0, experts // groups * call["topk_group"])
        checks.at_least(self.name, "eps", call["eps"], 0.0)
        if call["scale"] != call["scale"]:
            raise invalid(f"{self.name}: scale", call["scale"], "must be a number", nearest=1.0)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        logits = call["logits"]
        shape = (logits.shape[0], call["top_k"])
        return tuple(TensorMeta.dense(shape, dtype, logits.device) for dtype in (torch.float32, torch.int32))

    def reference(self, args: Args) -> Tensors:
        logits, bias = args["logits"].double(), args["bias"]
        weights = torch.empty((logits.shape[0], args["top_k"]), dtype=torch.float64)
        ids = torch.empty(weights.shape, dtype=torch.int32)
        extra = torch.zeros(logits.shape[1]) if bias is None else bias
        for t, row in enumerate(logits):
            score = _exact_score(row, args["scoring"])
            ranks = (score.float() + extra.float()).tolist()  # ranks are float32: saturated scores are real ties
            is_nan = [rank != rank for rank in ranks]
            numbers = [-math.inf if nan else rank for rank, nan in zip(ranks, is_nan, strict=True)]
            chosen = _exact_choice(numbers, is_nan, args)
            picked = score[torch.tensor(chosen, dtype=torch.int64)]
            total = picked.sum() + args["eps"] if args["renormalize"] else 1.0
            weights[t], ids[t] = picked / total * args["scale"], torch.tensor(chosen, dtype=torch.int32)
        return weights, ids

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        score = _score(args["logits"].float(), args["scoring"])
        rank = score if args["bias"] is None else score + args["bias"].float()
        if args["n_group"] > 1:
            rank = _limit_groups(rank, args)
        ids = top_ids(rank, args["top_k"])
        weights = score.gather(1, ids)
        if args["renormalize"]:
            weights = weights / (weights.sum(1, keepdim=True) + args["eps"])
        found = (weights * args["scale"], ids.to(torch.int32))
        return tuple(new if old is None else old.copy_(new) for new, old in zip(found, out, strict=True))

    def cost(self, call: Call) -> Cost:
        logits = call["logits"]
        return Cost(flops=8.0 * logits.numel, nbytes=float(logits.nbytes + 8 * logits.shape[0] * call["top_k"]))

    def cases(self) -> Iterable[Case]:
        return route_cases.route_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return route_cases.route_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT if output == "ids" else Tolerance(1e-6 * max(abs(args["scale"]), 1.0), 1e-5, 1e-10)

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["logits"].shape[0] < 2:
            return []
        part = slice(1, None)
        return [({**args, "logits": args["logits"][part]}, (part, part))]


def _score(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    if scoring == "softmax":
        return logits.softmax(-1)
    return sigmoid(logits) if scoring == "sigmoid" else softplus(logits).sqrt()


def _limit_groups(rank: torch.Tensor, args: Args) -> torch.Tensor:
    """Ranks of experts outside the chosen groups become -inf, which is below every rank but NaN."""
    grouped = rank.view(rank.shape[0], args["n_group"], rank.shape[1] // args["n_group"])
    if grouped.numel() == 0:
        return rank
    # A NaN must not lift its group: inside the group score it counts as -inf.
    clean = torch.where(grouped.isnan(), -torch.inf, grouped)
    if args["group_score"] == "max" or grouped.shape[2] < 2:
        score = clean.amax(2)
    else:
        score = clean.topk(2, dim=2).values.sum(2)
    kept = torch.zeros_like(score, dtype=torch.bool).scatter_(1, top_ids(score, args["topk_group"]), True)
    # Inside a kept group a NaN rank becomes -inf's upper neighbour, so that it still beats experts of other groups.
    lowest = torch.finfo(torch.float32).min
    inside = torch.where(grouped.isnan() | (grouped == -torch.inf), lowest, grouped)
    return torch.where(kept[:, :, None], inside, -torch.inf).flatten(1)


def _exact_score(row: torch.Tensor, scoring: str) -> torch.Tensor:
    if scoring == "softmax":
        shifted = (row - row.max()).exp() if row.numel() else row
        return shifted / shifted.sum()
    return 1 / (1 + (-row).exp()) if scoring == "sigmoid" else (row.clamp(min=0) + (-row.abs()).exp().log1p()).sqrt()


def _exact_choice(rank: list[float], is_nan: list[bool], args: Args) -> list[int]:
    """The winners by plain sorting: numbers before NaN, high before low, low id before high id."""
    size = len(rank) // args["n_group"]
    members = [range(g * size, (g + 1) * size) for g in range(args["n_group"])]
    count = 1 if args["group_score"] == "max" else 2
    value = [sum(sorted((rank[e] for e in group), reverse=True)[:count]) for group in members]
    kept = sorted(range(len(members)), key=lambda g: (-value[g], g))[: args["topk_group"]]
    pool = [e for g in kept for e in members[g]]
    return sorted(pool, key=lambda e: (is_nan[e], -rank[e], e))[: args["top_k"]]
