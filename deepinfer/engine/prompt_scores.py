"""Log-probabilities of prompt tokens: for `prompt_logprobs` and for `LLM.score`.

Invariant: a prompt position is recorded once, however the prompt is cut into chunks or recomputed.
"""

from __future__ import annotations

import torch

from deepinfer.engine.logprobs import CHUNK, describe
from deepinfer.engine.request import Request
from deepinfer.engine.scheduler import Plan
from deepinfer.engine.tokenizer import Tokenizer
from deepinfer.models import Model


def collect_prompt(model: Model, hidden: torch.Tensor, plan: Plan, tokenizer: Tokenizer | None) -> None:
    """Record the prompt rows of a step before it is settled; `hidden` [T, hidden] holds all rows of `plan`."""
    end = 0
    for sequence, count in plan.items():
        begin, end = end, end + count
        request = sequence.request
        if not request.needs_prompt_logits or sequence.new_tokens:
            continue
        skip = max(request.prompt_rows - sequence.computed, 0)
        for at in range(begin + skip, end, CHUNK):
            position = sequence.computed + at - begin
            table = torch.log_softmax(model.logits(hidden[at : min(at + CHUNK, end)]), -1)
            _record(request, position, table, tokenizer)


def _record(request: Request, position: int, table: torch.Tensor, tokenizer: Tokenizer | None) -> None:
    """`table` holds the distributions that follow prompt positions `position`, `position` + 1, ..."""
    following = request.prompt_ids[position + 1 : position + 1 + table.shape[0]]
    known = table[: len(following)]
    request.prompt_rows = position + table.shape[0]
    if request.scores is not None:
        ids = torch.tensor(following, dtype=torch.int64, device=table.device)
        request.scores.tokens.append(known.gather(1, ids[:, None])[:, 0].cpu())
        if request.scores.tables is not None:
            request.scores.tables.append(table.cpu())
    if request.params.prompt_logprobs is not None:
        if request.output.prompt_logprobs is None:
            request.output.prompt_logprobs = [None]
        if following:
            top = [request.params.prompt_logprobs] * len(following)
            request.output.prompt_logprobs += describe(known, following, top, tokenizer)
