"""Contract of `sampling.sample`: one token per row of logits, by the row's own parameters and random stream."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops.sampling import contract, sample_cases
from deepinfer.ops.sampling.adjust import adjusted
from deepinfer.ops.sampling.distribution import Candidates, Kept, Scaled, all_candidates, cut, scale
from deepinfer.ops.sampling.philox import PURPOSES, Source, Stream
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

LOGPROBS = ("raw", "processed", "none")
SOURCES = ("target", "draft")


@register
class Sample(OpSpec):
    """Draw one token per row: logits [n, V] f32 | bf16 | f16 -> ids [n] int64, valid [n] bool, logprobs [n] f32.

    Order: bias (x[id] += value, duplicates add up), repetition penalty (positive logits of ids in `history` divided,
    others multiplied), frequency (times the count) and presence penalties on the ids at places >= prompt_lens, banned
    ids (-inf; min_tokens), temperature, token mask, top-k, softmax, top-p, min-p, draw; each None is the identity. The
    rules of the cuts and of out-of-range parameter values are in `sampling.distribution`, ids outside [0, V) are
    ignored. The draw is arg-max of log p + Gumbel noise, ties to the lower id, the noise a pure function of (seed,
    sample_index, position, purpose, token id), see `sampling.philox`; a row's result depends on nothing else. Purpose
    "draft" keeps a drafter's draws independent of the target's. temperature <= 0, or `greedy` for all rows, is exact
    arg-max, ties to the lowest id. A row with NaN or +inf among its allowed tokens, or with none allowed, fails alone:
    id -1, valid false, log-probability NaN. logprobs: "raw" = log-softmax of the given logits at the drawn id,
    "processed" = its log-probability in the distribution it was drawn from (0 for arg-max rows), "none" = NaN.
    """

    name = "sampling.sample"
    params = (
        *contract.LOGITS,
        Param("seeds", Kind.OPT_TENSOR), Param("sample_index", Kind.OPT_TENSOR), Param("positions", Kind.OPT_TENSOR),
        Param("greedy", Kind.BOOL), Param("purpose", Kind.STR), Param("logprobs", Kind.STR),
    )
    returns = ("ids", "valid", "chosen_logprobs")

    def check(self, call: Call) -> None:
        contract.check_logits(self.name, call)
        for name, allowed in (("logprobs", LOGPROBS), ("purpose", SOURCES)):
            if call[name] not in allowed:
                raise invalid(f"{self.name}: {name}", call[name], f"must be one of {allowed}", nearest=repr(allowed[0]))
        if call["seeds"] is None and not call["greedy"]:
            raise invalid(f"{self.name}: seeds", None, "must be given unless every row is greedy (temperature=0)")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        rows, device = (call["logits"].shape[0],), call["logits"].device
        return tuple(TensorMeta.dense(rows, dtype, device) for dtype in (torch.int64, torch.bool, torch.float32))

    def reference(self, args: Args) -> Tensors:
        rows = [_exact_row(args, row) for row in range(args["logits"].shape[0])]
        ids = torch.tensor([token for token, _ in rows], dtype=torch.int64)
        return ids, ids >= 0, torch.tensor([value for _, value in rows], dtype=torch.float64)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        found = draw(args, all_candidates(args))
        return tuple(new if old is None else old.copy_(new) for new, old in zip(found, out, strict=True))

    def cost(self, call: Call) -> Cost:
        logits = call["logits"]
        return Cost(flops=40.0 * logits.numel, nbytes=float(logits.nbytes + 13 * logits.shape[0]))

    def cases(self) -> Iterable[Case]:
        return sample_cases.sample_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return sample_cases.sample_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return Tolerance(1e-5, 1e-5, 1e-9) if output == "chosen_logprobs" else EXACT

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        rows = args["logits"].shape[0]
        if rows < 2:
            return []
        picked = torch.tensor([rows - 1, 0])
        return [(sample_cases.rows_of(args, picked), (picked,) * 3)]


def draw(args: Args, candidates: Candidates, source: type[Source] = Stream) -> Tensors:
    """ids, valid, log-probabilities in torch; reads nothing on the host unless `candidates` or `source` does."""
    logits = args["logits"]
    if logits.shape[1] == 0:
        rows = logits.shape[:1]
        return logits.new_full(rows, -1, dtype=torch.int64), logits.new_zeros(rows, dtype=torch.bool), logits.new_full(
            rows, torch.nan, dtype=torch.float32
        )
    if args["greedy"]:
        x = adjusted(args)
        ids = _largest(x)
        valid = x.gather(1, ids[:, None])[:, 0].isfinite()
        processed = torch.zeros_like(x[:, 0])
    else:
        scaled = scale(adjusted(args), args["temperature"])
        ids, processed = _draw_kept(args, scaled, cut(scaled, args, candidates(scaled)), source)
        valid = scaled.valid
    chosen = processed if args["logprobs"] == "processed" else torch.full_like(processed, torch.nan)
    if args["logprobs"] == "raw":
        wide = logits.float()
        chosen = (wide.gather(1, ids[:, None]) - wide.logsumexp(1, keepdim=True))[:, 0]
    return torch.where(valid, ids, -1), valid, torch.where(valid, chosen, torch.nan)


def _draw_kept(
    args: Args, scaled: Scaled, kept: Kept, source: type[Source]
) -> tuple[torch.Tensor, torch.Tensor]:
    stream = source(args["seeds"], args["sample_index"], args["positions"])
    vocab = scaled.x.shape[1]
    if kept.ids is None:
        score = kept.log + stream.all_noise(vocab, args["purpose"])
        column = ids = _largest(score)[:, None]
    else:
        score = kept.log + stream.noise(kept.ids, args["purpose"])
        # Candidates stand in order of probability; equal scores must still go to the lower id.
        ids = torch.where(score == score.amax(1, keepdim=True), kept.ids, vocab).amin(1, keepdim=True)
        column = (kept.ids == ids).int().argmax(1, keepdim=True)
    if args["logprobs"] == "processed":
        total = kept.log.exp().sum(1, keepdim=True, dtype=torch.float64).log()
        processed = (kept.log.gather(1, column) - total).float()[:, 0]
    else:
        processed = torch.zeros_like(kept.log[:, 0])
    ids = ids[:, 0]
    if scaled.greedy is None:
        return ids, processed
    return torch.where(scaled.greedy, _largest(scaled.x), ids), torch.where(scaled.greedy, 0.0, processed)


def _largest(x: torch.Tensor) -> torch.Tensor:
    """The first place of the largest value of each row, int64 [n]; a NaN is the largest."""
    if x.device.type == "cpu" and x.shape[1]:  # numpy's arg-max is vectorised, torch's is not
        return torch.from_numpy(x.detach().numpy().argmax(1))
    return x.argmax(1)


def _exact_row(args: Args, row: int) -> tuple[int, float]:
    found = contract.exact_log_probs(args if not args["greedy"] else {**args, "temperature": None}, row)
    if found is None:
        return -1, math.nan
    x, log = found
    if args["greedy"] or not contract.number_of(args, "temperature", row, 1.0) > 0:
        token, processed = x.index(max(x)), 0.0
    else:
        stream = tuple(
            0 if args[name] is None else int(args[name][row]) for name in ("seeds", "sample_index", "positions")
        )
        token = contract.exact_draw(log, (stream[0], stream[1], stream[2]), PURPOSES[args["purpose"]])
        processed = log[token]
    if args["logprobs"] == "raw":
        return token, float(args["logits"][row].double().log_softmax(0)[token])
    return token, processed if args["logprobs"] == "processed" else math.nan
