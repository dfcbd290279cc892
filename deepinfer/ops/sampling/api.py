"""Public sampling ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.errors import invalid
from deepinfer.ops.sampling.log_probs import LogProbs
from deepinfer.ops.sampling.sample import Sample
from deepinfer.ops.sampling.token_mask import ApplyTokenMask
from deepinfer.ops.sampling.verify_draft import VerifyDraft
from deepinfer.registry import Op, get_spec

_sample = Op(get_spec(Sample.name))
_log_probs = Op(get_spec(LogProbs.name))
_token_mask = Op(get_spec(ApplyTokenMask.name))
_verify = Op(get_spec(VerifyDraft.name))

Tensor = torch.Tensor


def sample(
    logits: Tensor,
    *,
    temperature: Tensor | float | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seeds: Tensor | None = None,
    sample_index: Tensor | None = None,
    positions: Tensor | None = None,
    bias_ids: Tensor | None = None,
    bias_values: Tensor | None = None,
    history: Tensor | None = None,
    prompt_lens: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    frequency_penalty: Tensor | None = None,
    presence_penalty: Tensor | None = None,
    banned_ids: Tensor | None = None,
    mask: Tensor | None = None,
    row_map: Tensor | None = None,
    purpose: str = "target",
    logprobs: str = "raw",
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token per row. A parameter that is None is the identity for all rows and costs nothing.

    Args:
        logits: [n, V] f32, bf16 or f16.
        temperature: [n] f32 (<= 0: arg-max), or one number for all rows; 0 takes the plain arg-max path.
        top_k: [n] integers, <= 0 off. top_p, min_p: [n] f32.
        seeds: [n] int64, needed unless temperature is 0; sample_index: [n] (the n-th sample of a request); positions:
            [n] position of the token to draw. Together they name the random numbers of the row.
        bias_ids, bias_values: [n, B] ids and f32 values added to their logits.
        history: [n, L] prompt and generated ids, padded with -1; prompt_lens: [n] how many are prompt.
        repetition_penalty, frequency_penalty, presence_penalty: [n] f32, need history.
        banned_ids: [n, S] ids that may not be drawn (stop ids below min_tokens), padded with -1.
        mask: [m, ceil(V/32)] int32 packed token mask; row_map: [n] its row per logits row, -1 none.
        purpose: "target", or "draft" for a drafter's draws.
        logprobs: "raw", "processed" or "none": see the spec.
        out: (ids, valid, logprobs) tensors, or None to allocate.
        validate: accepted for uniformity; any parameter value has a defined meaning.

    Returns:
        (ids [n] int64, valid [n] bool, logprobs [n] f32).

    Raises:
        InvalidArgument: shapes or dtypes break the contract, or seeds are missing.

    Source: top-p arXiv:1904.09751, min-p arXiv:2407.01082, repetition penalty arXiv:1909.05858; contract:
        `deepinfer.ops.sampling.sample.Sample`.

    >>> import torch
    >>> from deepinfer.ops import sampling
    >>> logits = torch.tensor([[0.0, 3.0, 3.0], [float("nan"), 0.0, 0.0]])
    >>> ids, valid, _ = sampling.sample(logits, temperature=0)
    >>> ids.tolist(), valid.tolist()
    ([1, -1], [True, False])
    >>> one = dict(seeds=torch.tensor([7, 7]), positions=torch.tensor([5, 5]), top_k=torch.tensor([2, 1]))
    >>> sampling.sample(torch.tensor([[0.0, 3.0, 3.1]] * 2), **one)[0][1].item()
    2
    """
    warmth, greedy = _temperature(logits, temperature)
    ids, valid, chosen = _sample(
        logits, warmth, top_k, top_p, min_p, bias_ids, bias_values, history, prompt_lens, repetition_penalty,
        frequency_penalty, presence_penalty, banned_ids, mask, row_map, seeds, sample_index, positions, greedy, purpose,
        logprobs, out=out, validate=validate,
    )
    return ids, valid, chosen


def log_probs(
    logits: Tensor,
    *,
    temperature: Tensor | float | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    bias_ids: Tensor | None = None,
    bias_values: Tensor | None = None,
    history: Tensor | None = None,
    prompt_lens: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    frequency_penalty: Tensor | None = None,
    presence_penalty: Tensor | None = None,
    banned_ids: Tensor | None = None,
    mask: Tensor | None = None,
    row_map: Tensor | None = None,
    out: Tensor | None = None,
    validate: bool = False,
) -> Tensor:
    """Log-probabilities of the distribution that `sample` draws from.

    Args:
        logits: [n, V] f32, bf16 or f16, one row per request.
        temperature .. row_map: as for `sample`.
        out: result [n, V] f32, or None to allocate.
        validate: read device values and raise for those out of range.

    Returns:
        [n, V] f32; -inf at tokens that cannot be drawn, NaN throughout a row that is not valid.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: contract: `deepinfer.ops.sampling.log_probs.LogProbs`.

    >>> import torch
    >>> from deepinfer.ops import sampling
    >>> table = sampling.log_probs(torch.tensor([[0.4, 0.3, 0.3, 0.0]]).log(), top_k=torch.tensor([2]))
    >>> [round(value, 4) for value in table.exp()[0].tolist()]  # exactly two, the lower of the equal ids
    [0.5714, 0.4286, 0.0, 0.0]
    """
    warmth, greedy = _temperature(logits, temperature)
    if greedy:
        warmth = torch.zeros(logits.shape[:1], dtype=torch.float32, device=logits.device)
    (table,) = _log_probs(
        logits, warmth, top_k, top_p, min_p, bias_ids, bias_values, history, prompt_lens, repetition_penalty,
        frequency_penalty, presence_penalty, banned_ids, mask, row_map, out=None if out is None else (out,),
        validate=validate,
    )
    return table


def apply_token_mask(
    logits: Tensor,
    mask: Tensor,
    row_map: Tensor | None = None,
    *,
    out: Tensor | None = None,
    validate: bool = False,
) -> Tensor:
    """A copy of logits with -inf at the tokens that a packed bit mask forbids.

    Args:
        logits: [n, V] f32, bf16 or f16.
        mask: [m, ceil(V/32)] int32, bit v % 32 of word v // 32 allows token v.
        row_map: [n] mask row of each logits row, outside [0, m) none; absent: row i uses row i.
        out: result, or None to allocate; may be logits itself.
        validate: accepted for uniformity.

    Returns:
        [n, V] in logits' dtype.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: contract: `deepinfer.ops.sampling.token_mask.ApplyTokenMask`.

    >>> import torch
    >>> from deepinfer.ops import sampling
    >>> sampling.apply_token_mask(torch.zeros(1, 3), torch.tensor([[0b101]], dtype=torch.int32)).tolist()
    [[0.0, -inf, 0.0]]
    """
    (masked,) = _token_mask(logits, mask, row_map, out=None if out is None else (out,), validate=validate)
    return masked


def verify_draft(
    target: Tensor,
    draft_ids: Tensor,
    *,
    seeds: Tensor,
    draft: Tensor | None = None,
    sample_index: Tensor | None = None,
    positions: Tensor | None = None,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    validate: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a prefix of each request's drafted tokens and draw the token after it, by exact rejection sampling.

    Args:
        target: [b, s+1, V] f32 from `log_probs`: row r is the distribution after r drafts.
        draft_ids: [b, s] drafted tokens; an id outside the vocabulary ends the request's drafts.
        seeds: [b] int64. sample_index: [b]. positions: [b] position of the first token to emit.
        draft: [b, s, V] f32 log-probabilities the drafts were drawn from, or None for drafts chosen deterministically.
        out: (accepted, next_ids, valid) tensors, or None to allocate.
        validate: accepted for uniformity.

    Returns:
        (accepted [b] int32, next_ids [b] int64, valid [b] bool): emit draft_ids[i, :accepted[i]], then next_ids[i].

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: arXiv:2211.17192, arXiv:2302.01318; contract: `deepinfer.ops.sampling.verify_draft.VerifyDraft`.

    >>> import torch
    >>> from deepinfer.ops import sampling
    >>> certain = torch.full((1, 3, 4), -torch.inf)
    >>> certain[0, 0, 2] = certain[0, 1, 1] = certain[0, 2, 3] = 0.0  # the target says 2, 1, 3
    >>> accepted, token, _ = sampling.verify_draft(certain, torch.tensor([[2, 0]]), seeds=torch.tensor([1]))
    >>> accepted.item(), token.item()
    (1, 1)
    """
    accepted, ids, valid = _verify(
        target, draft_ids, draft, seeds, sample_index, positions, out=out, validate=validate
    )
    return accepted, ids, valid


def _temperature(logits: Tensor, temperature: Tensor | float | None) -> tuple[Tensor | None, bool]:
    """(tensor or None, all rows greedy)."""
    if temperature is None or isinstance(temperature, Tensor):
        return temperature, False
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature >= 0:
        raise invalid("sampling: temperature", temperature, "must be a tensor [n] or a number >= 0", nearest=0.0)
    if temperature == 0 or not isinstance(logits, Tensor) or logits.ndim == 0:
        return None, temperature == 0
    return torch.full(logits.shape[:1], float(temperature), dtype=torch.float32, device=logits.device), False
