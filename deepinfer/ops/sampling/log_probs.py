"""Contract of `sampling.log_probs`: the distribution that `sampling.sample` draws from, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.ops.sampling import contract, sample_cases
from deepinfer.ops.sampling.adjust import adjusted
from deepinfer.ops.sampling.distribution import Candidates, all_candidates, cut, normalised, scale
from deepinfer.registry import Call, Case, Cost, ErrorCase, OpSpec, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class LogProbs(OpSpec):
    """Log-probabilities [n, V] float32 after bias, penalties, bans, temperature, mask, top-k, top-p and min-p.

    Parameters and order as `sampling.sample`; tokens that were cut have -inf. An arg-max row (temperature <= 0) is 0
    at its token and -inf elsewhere. A row that `sample` calls not valid is NaN throughout. This is what
    `sampling.verify_draft` takes for target and drafter.
    """

    name = "sampling.log_probs"
    params = contract.LOGITS
    returns = ("log_probs",)

    def check(self, call: Call) -> None:
        contract.check_logits(self.name, call)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        logits = call["logits"]
        return (TensorMeta.dense(logits.shape, torch.float32, logits.device),)

    def reference(self, args: Args) -> Tensors:
        table = torch.full(args["logits"].shape, torch.nan, dtype=torch.float64)
        for row in range(table.shape[0]):
            found = contract.exact_log_probs(args, row)
            if found is not None:
                table[row] = torch.tensor(found[1], dtype=torch.float64)
        return (table,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        table = tabulate(args, all_candidates(args))
        return (table if out[0] is None else out[0].copy_(table),)

    def cost(self, call: Call) -> Cost:
        logits = call["logits"]
        return Cost(flops=10.0 * logits.numel, nbytes=float(logits.nbytes + 4 * logits.numel))

    def cases(self) -> Iterable[Case]:
        return sample_cases.log_probs_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return sample_cases.log_probs_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        # The difference to the maximum carries the rounding of the logits' own size.
        return Tolerance(2e-5, 2e-5, 1e-9)

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        rows = args["logits"].shape[0]
        if rows < 2:
            return []
        picked = torch.tensor([rows - 1, 0])
        return [(sample_cases.rows_of(args, picked), (picked,))]


def tabulate(args: Args, candidates: Candidates) -> torch.Tensor:
    """The table in torch."""
    scaled = scale(adjusted(args), args["temperature"])
    if scaled.x.shape[1] == 0:
        return scaled.x
    kept = cut(scaled, args, candidates(scaled))
    table = normalised(kept)
    if kept.ids is not None:
        table = torch.full_like(scaled.log, -torch.inf).scatter_(1, kept.ids, table)
    if scaled.greedy is not None:
        winner = torch.full_like(table, -torch.inf).scatter_(1, scaled.x.argmax(1, keepdim=True), 0.0)
        table = torch.where(scaled.greedy[:, None], winner, table)
    return torch.where(scaled.valid[:, None], table, torch.nan)
