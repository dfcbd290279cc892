"""Log-probabilities that requests ask for: log-softmax of the model's own logits, before any sampling rule.

Whole tables are only built for the rows that need them, a bounded number of rows at a time.
"""

from __future__ import annotations

import torch

from deepinfer.engine.outputs import Logprob, TokenLogprobs
from deepinfer.engine.params import ALL
from deepinfer.engine.tokenizer import Tokenizer

CHUNK = 512  # rows of [rows, vocab] float32 that exist at a time


def describe(
    table: torch.Tensor, chosen: list[int], top: list[int], tokenizer: Tokenizer | None
) -> list[TokenLogprobs]:
    """Per row of `table` [n, vocab] (log-probabilities) the chosen token and the `top[i]` most likely ones.

    Equal probabilities rank by lower token id.
    """
    vocab = table.shape[1]
    wanted = [vocab if k == ALL else min(k, vocab) for k in top]
    ids = torch.tensor(chosen, device=table.device)
    values = table.gather(1, ids[:, None])
    ahead = (table > values) | ((table == values) & (torch.arange(vocab, device=table.device) < ids[:, None]))
    ranks = (ahead.sum(1) + 1).tolist()
    best = max(wanted, default=0)
    order = table.sort(dim=1, descending=True, stable=True) if best else None
    top_values = [] if order is None else order.values[:, :best].tolist()
    top_ids = [] if order is None else order.indices[:, :best].tolist()
    result: list[TokenLogprobs] = []
    for row, (token, value) in enumerate(zip(chosen, values[:, 0].tolist(), strict=True)):
        found: TokenLogprobs = {}
        if wanted[row]:
            pairs = zip(top_ids[row][: wanted[row]], top_values[row], strict=False)
            found = {i: Logprob(v, rank, _text(tokenizer, i)) for rank, (i, v) in enumerate(pairs, 1)}
        found.setdefault(token, Logprob(value, ranks[row], _text(tokenizer, token)))
        result.append(found)
    return result


def _text(tokenizer: Tokenizer | None, token: int) -> str | None:
    return None if tokenizer is None else tokenizer.decode([token], skip_special=False)
