"""Contract of `sampling.verify_draft`: exact rejection sampling of drafted tokens.

Law: with drafts drawn from q, the emitted tokens have exactly the law of sampling from p, because
P(emit t) = q(t) min(1, p(t)/q(t)) + P(reject) max(p(t) - q(t), 0) / sum max(p - q, 0) = p(t)
(Leviathan et al., arXiv 2211.17192). The acceptance and residual draws use random purposes of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.ops import checks
from deepinfer.ops.sampling import contract, verify_cases
from deepinfer.ops.sampling.philox import PURPOSES, Stream, gumbel, unit
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class VerifyDraft(OpSpec):
    """Accept the longest valid prefix of each request's drafts and emit one more token.

    target [b, s+1, V] float32: log-probabilities p of `sampling.log_probs`, row r for the token after r drafts (the
    request's parameters, penalties, bias and grammar are in them, the drafts counted as history). draft_ids [b, s]:
    drafts; an id outside [0, V) ends that request's drafts. draft [b, s, V] float32: log-probabilities q that the
    drafts were drawn from, or None when they were chosen deterministically (q = 1 at the draft).

    Draft r is accepted iff u q(t) < p(t), u in (0, 1) from stream (position + r, "accept", t): p = 0 is never accepted.
    The first refused row emits from max(p - q, 0) (from p, should rounding leave nothing of it), drawn with purpose
    "residual"; a row without a draft, and row s after all were accepted, emits from p with purpose "target", which is
    the very token that `sampling.sample` draws there. accepted [b] int32 counts accepted drafts, next_ids [b] int64 is
    the emitted token. A row of p (or of q, where it decides) with NaN, or a p with +inf or without any token, ends its
    request with valid false and next id -1; accepted drafts before it stand. Other requests are not touched.
    """

    name = "sampling.verify_draft"
    params = (
        Param("target"), Param("draft_ids"), Param("draft", Kind.OPT_TENSOR), Param("seeds"),
        Param("sample_index", Kind.OPT_TENSOR), Param("positions", Kind.OPT_TENSOR),
    )
    returns = ("accepted", "next_ids", "valid")

    def check(self, call: Call) -> None:
        target, ids, draft = call["target"], call["draft_ids"], call["draft"]
        checks.rank(self.name, "target", target, 3, "[b,s+1,V]")
        checks.dtype(self.name, "target", target, (torch.float32,))
        rows, steps, vocab = target.shape
        checks.at_least(self.name, "target.shape[1]", steps, 1)
        checks.at_least(self.name, "target.shape[2]", vocab, 1)
        checks.shape(self.name, "draft_ids", ids, (rows, steps - 1), "[b,s]")
        checks.dtype(self.name, "draft_ids", ids, checks.INDEX_DTYPES)
        if draft is not None:
            checks.dtype(self.name, "draft", draft, (torch.float32,))
            checks.shape(self.name, "draft", draft, (rows, steps - 1, vocab), "[b,s,V]")
        for name in ("seeds", "sample_index", "positions"):
            if call[name] is not None:
                checks.shape(self.name, name, call[name], (rows,), "[b]")
                checks.dtype(self.name, name, call[name], checks.INDEX_DTYPES)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        rows, device = call["target"].shape[:1], call["target"].device
        return tuple(TensorMeta.dense(rows, dtype, device) for dtype in (torch.int32, torch.int64, torch.bool))

    def reference(self, args: Args) -> Tensors:
        found = [_exact_request(args, row) for row in range(args["target"].shape[0])]
        accepted, ids = (torch.tensor([pair[i] for pair in found], dtype=torch.int64) for i in (0, 1))
        return accepted.int(), ids, ids >= 0

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        target, ids, draft = args["target"], args["draft_ids"].long(), args["draft"]
        rows, steps, vocab = target.shape
        stream = Stream(args["seeds"], args["sample_index"], args["positions"])
        named = (ids >= 0) & (ids < vocab)
        places = ids.clamp(0, vocab - 1)[:, :, None]
        p = target[:, :-1].gather(2, places)[..., 0].exp()
        q = torch.ones_like(p) if draft is None else draft.gather(2, places)[..., 0].exp()
        sound = target.amax(2).isfinite()
        u = unit(_row_words(stream, ids.clamp(0, vocab - 1), "accept"))
        taken = (named & sound[:, :-1] & (u * q < p)).cumprod(1)
        accepted = taken.sum(1)
        row = torch.arange(rows, device=target.device)
        log = target[row, accepted]
        last = accepted.clamp(max=max(steps - 2, 0))
        refused = (accepted < steps - 1) & (named[row, last] if steps > 1 else False)
        residual = torch.zeros_like(log) if steps == 1 else _residual(log, draft, ids.clamp(0, vocab - 1), row, last)
        chosen = torch.where(refused[:, None], residual, log)
        moved = stream.shifted(accepted)
        noise = gumbel(moved.all_words(vocab, torch.where(refused, PURPOSES["residual"], PURPOSES["target"])))
        valid = sound[row, accepted] & ~chosen.isnan().any(1)
        next_ids = torch.where(valid, (chosen + noise).argmax(1), -1)
        found = (accepted.int(), next_ids, valid)
        return tuple(new if old is None else old.copy_(new) for new, old in zip(found, out, strict=True))

    def cost(self, call: Call) -> Cost:
        target = call["target"]
        read = target.shape[0] * target.shape[2] * 4 * (2 if call["draft"] is None else 3)
        return Cost(flops=40.0 * target.shape[0] * target.shape[2], nbytes=float(read))

    def cases(self) -> Iterable[Case]:
        return verify_cases.verify_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return verify_cases.verify_errors(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        """Rows of p and q after the deciding one are NaN."""
        accepted = self.reference(args)[0].tolist()
        target, draft = args["target"].clone(), None if args["draft"] is None else args["draft"].clone()
        for row, count in enumerate(accepted):
            target[row, count + 1 :] = torch.nan
            if draft is not None:
                draft[row, count + 1 :] = torch.nan
        return {**args, "target": target, "draft": draft}

    def batch_variants(self, args: Args) -> list[tuple[dict[str, Any], tuple[Any, ...]]]:
        rows = args["target"].shape[0]
        if rows < 2:
            return []
        picked = torch.tensor([rows - 1, 0])
        sub = {name: None if value is None else value[picked] for name, value in args.items()}
        return [(sub, (picked,) * 3)]


def _row_words(stream: Stream, ids: torch.Tensor, purpose: str) -> torch.Tensor:
    """Random words of ids [b, s], column r at position + r."""
    steps = ids.shape[1]
    each = (part.repeat_interleave(steps) for part in (stream.seeds, stream.sample, stream.position))
    rows = Stream(*each).shifted(torch.arange(steps, device=ids.device).repeat(ids.shape[0]))
    return rows.words(ids.reshape(-1, 1), purpose).view(ids.shape)


def _residual(
    log: torch.Tensor, draft: torch.Tensor | None, ids: torch.Tensor, row: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    """ln max(p - q, 0) of the refused row [b, V]; ln p where nothing is left. NaN in q stays NaN."""
    p = log.exp()
    if draft is None:
        q = torch.zeros_like(p).scatter_(1, ids[row, last][:, None], 1.0)
    else:
        q = draft[row, last].exp()
    rest = (p - q).clamp(min=0)
    empty = rest.sum(1, keepdim=True) == 0
    return torch.where(empty, log, rest.log())


def _exact_request(args: Args, row: int) -> tuple[int, int]:
    """(accepted, next id or -1) of one request, step by step in float64."""
    seed = int(args["seeds"][row])
    sample, position = (0 if args[n] is None else int(args[n][row]) for n in ("sample_index", "positions"))
    steps, vocab = args["target"].shape[1:]
    for r in range(steps):
        log = args["target"][row, r].double().tolist()
        if any(value != value for value in log) or not math.isfinite(max(log)):
            return r, -1
        token = int(args["draft_ids"][row, r]) if r < steps - 1 else -1
        if not 0 <= token < vocab:
            return r, contract.exact_draw(log, (seed, sample, position + r), PURPOSES["target"])
        p = [math.exp(value) for value in log]
        if args["draft"] is None:
            q = [1.0 if v == token else 0.0 for v in range(vocab)]
        else:
            q = args["draft"][row, r].double().exp().tolist()
        words = contract.exact_words(seed, sample, position + r, PURPOSES["accept"], token // 4)
        if contract.exact_unit(words[token % 4]) * q[token] < p[token]:
            continue
        if any(value != value for value in q):
            return r, -1
        rest = [math.log(a - b) if a > b else -math.inf for a, b in zip(p, q, strict=True)]
        weights = rest if max(rest) > -math.inf else log
        return r, contract.exact_draw(weights, (seed, sample, position + r), PURPOSES["residual"])
    raise RuntimeError("verify_draft reference: the row after the last draft has none, so it returned above")
