"""Draft verification: the law of what is emitted is the target's, whatever the drafter proposes."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

import pytest
import torch

from deepinfer.ops import sampling
from tests.unit.sampling.laws import chi_square

V, S = 5, 2
module = import_module("deepinfer.ops.sampling.verify_draft")  # the package exports a function of that name


def table(seed: int) -> torch.Tensor:
    """Logits after each context of up to two tokens: [1 + V + V*V, V]."""
    return torch.randn((1 + V + V * V, V), generator=torch.Generator().manual_seed(seed)) * 1.5


def row_of(context: torch.Tensor) -> torch.Tensor:
    """Row of `table` for contexts [n, r]."""
    if context.shape[1] == 0:
        return torch.zeros(context.shape[0], dtype=torch.int64)
    if context.shape[1] == 1:
        return 1 + context[:, 0]
    return 1 + V + context[:, 0] * V + context[:, 1]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "cut": {"top_k": 4, "top_p": 0.9},
    "min-p": {"min_p": 0.25},
    "bias": {"bias_ids": [1, 3], "bias_values": [2.0, -3.0]},
    "min-tokens": {"banned_ids": [2]},
}


def processed(logits: torch.Tensor, context: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities of the target with the request's parameters, the context counted as history."""
    n = logits.shape[0]
    tensors = {name: torch.stack([torch.tensor(value)] * n) for name, value in options.items()}
    if context.shape[1]:
        tensors |= {"history": context, "presence_penalty": torch.full((n,), 0.5)}
    return sampling.log_probs(logits, **tensors)


@pytest.mark.parametrize("name", OPTIONS)
def test_emitted_sequences_follow_the_target(name: str) -> None:
    """C59: the joint law of three tokens equals the enumerated target law, with context-dependent p and q."""
    n, options = 12_000, OPTIONS[name]
    p_logits, q_logits = table(1), table(2)
    seeds, start = torch.arange(n), 100
    drafts, q_rows, p_rows = torch.empty((n, 0), dtype=torch.int64), [], []
    for r in range(S):
        logits = q_logits[row_of(drafts)]
        q_rows.append(sampling.log_probs(logits, temperature=1.3))
        where = torch.full((n,), start + r)
        chosen = sampling.sample(logits, temperature=1.3, seeds=seeds, positions=where, purpose="draft")[0]
        p_rows.append(processed(p_logits[row_of(drafts)], drafts, options))
        drafts = torch.cat((drafts, chosen[:, None]), 1)
    p_rows.append(processed(p_logits[row_of(drafts)], drafts, options))
    accepted, token, valid = sampling.verify_draft(
        torch.stack(p_rows, 1), drafts, draft=torch.stack(q_rows, 1), seeds=seeds, positions=torch.full((n,), start)
    )
    assert valid.all()
    assert len(set(accepted.tolist())) == 3  # every ending occurs
    emitted = complete(drafts, accepted.long(), token, p_logits, options, seeds, start)
    counts = torch.bincount(emitted[:, 0] * V * V + emitted[:, 1] * V + emitted[:, 2], minlength=V**3)
    law = enumerated(p_logits, options)
    statistic, limit = chi_square(counts, law)
    assert statistic < limit
    assert int(counts[law == 0].sum()) == 0
    wrong, limit = chi_square(torch.bincount(drafts[:, 0], minlength=V), p_rows[0][0].exp())
    assert wrong > limit  # taking every draft would be noticed


def complete(
    drafts: torch.Tensor, accepted: torch.Tensor, token: torch.Tensor, p_logits: torch.Tensor, options: dict[str, Any],
    seeds: torch.Tensor, start: int,
) -> torch.Tensor:
    """The first three tokens of each request; what the round did not emit is sampled from the target one by one."""
    n = drafts.shape[0]
    emitted = torch.full((n, S + 1), -1)
    emitted[:, :S] = torch.where(torch.arange(S)[None] < accepted[:, None], drafts, -1)
    emitted[torch.arange(n), accepted] = token
    for r in range(1, S + 1):
        need = (emitted[:, r] < 0).nonzero()[:, 0]
        context = emitted[need, :r]
        log = processed(p_logits[row_of(context)], context, options)
        where = torch.full((len(need),), start + r)
        emitted[need, r] = sampling.sample(log, seeds=seeds[need], positions=where)[0]
    return emitted


def enumerated(p_logits: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """P(t1) P(t2 | t1) P(t3 | t1, t2) for all V^3 sequences, [V^3]."""
    law = torch.ones(1, dtype=torch.float64)
    for length in range(3):
        contexts = torch.tensor(list(product(range(V), repeat=length)), dtype=torch.int64).reshape(V**length, length)
        p = processed(p_logits[row_of(contexts)], contexts, options).double().exp()
        law = (law[:, None] * p).flatten()
    return law


@pytest.mark.parametrize("deterministic", [False, True])
def test_acceptance_probability_is_exact(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """C58: over evenly spaced u, the accepted share is min(1, p/q), and the rest emits from max(p - q, 0)."""
    n = 4000
    p, q = torch.tensor([0.1, 0.4, 0.3, 0.2, 0.0]), torch.tensor([0.3, 0.1, 0.3, 0.1, 0.2])
    words = (torch.arange(n) * (2**32 // n) + 2**31 // n)[:, None]
    monkeypatch.setattr(module, "_row_words", lambda stream, ids, purpose: words)
    target, draft = p.log().expand(n, 2, V), q.log().expand(n, 1, V)
    total = torch.zeros(V, dtype=torch.float64)
    for token in range(V):
        ids = torch.full((n, 1), token)
        accepted, emitted, _ = sampling.verify_draft(
            target, ids, draft=None if deterministic else draft, seeds=torch.arange(n)
        )
        wanted = p[token].item() if deterministic else min(1.0, (p[token] / q[token]).item())
        assert accepted.float().mean().item() == pytest.approx(wanted, abs=1.5 / n)
        refused = emitted[accepted == 0]
        rest = p.clone() if deterministic else (p - q).clamp(min=0)
        if deterministic:
            rest[token] = 0
        if len(refused):
            statistic, limit = chi_square(torch.bincount(refused, minlength=V), rest)
            assert statistic < limit
        total += q[token] * torch.bincount(torch.where(accepted == 1, token, emitted), minlength=V).double() / n
    if not deterministic:
        torch.testing.assert_close(total, p.double(), rtol=0, atol=0.02)


def test_zero_target_probability_is_never_accepted() -> None:
    n = 5_000
    target = torch.tensor([0.0, 0.5, 0.5]).log().expand(n, 2, 3)
    draft = torch.tensor([1e-30, 0.5, 0.5]).log().expand(n, 1, 3)
    accepted, token, _ = sampling.verify_draft(target, torch.zeros(n, 1).long(), draft=draft, seeds=torch.arange(n))
    assert not accepted.any()
    assert (token > 0).all()


def test_bonus_token_is_the_one_plain_sampling_draws() -> None:
    n = 500
    logits = torch.randn((n, 17), generator=torch.Generator().manual_seed(4)) * 2
    log = sampling.log_probs(logits)
    plain = sampling.sample(logits, seeds=torch.arange(n), positions=torch.full((n,), 9))[0]
    no_drafts = torch.full((n, 1), -1)
    target = torch.stack((log, log), 1)
    accepted, token, _ = sampling.verify_draft(target, no_drafts, seeds=torch.arange(n), positions=torch.full((n,), 9))
    assert not accepted.any()
    assert torch.equal(token, plain)


def test_greedy_speculation_equals_greedy_decoding() -> None:
    n = 64
    logits = torch.randn((n, 3, 11), generator=torch.Generator().manual_seed(6))
    best = logits.argmax(2)
    target = sampling.log_probs(logits.flatten(0, 1), temperature=0).unflatten(0, (n, 3))
    drafts = best[:, :2].clone()
    drafts[::3, 0] = (drafts[::3, 0] + 1) % 11
    drafts[1::3, 1] = (drafts[1::3, 1] + 1) % 11
    accepted, token, valid = sampling.verify_draft(target, drafts, seeds=torch.arange(n))
    assert valid.all()
    assert accepted.tolist() == [(0, 1, 2)[i % 3] for i in range(n)]
    assert torch.equal(token, best[torch.arange(n), accepted.long()])


def test_requests_do_not_touch_each_other() -> None:
    generator = torch.Generator().manual_seed(8)
    target, draft = (torch.randn((6, s, 9), generator=generator).log_softmax(2) for s in (3, 2))
    ids = torch.randint(0, 9, (6, 2), generator=generator)
    seeds = torch.arange(6)
    whole = sampling.verify_draft(target, ids, draft=draft, seeds=seeds)
    spoiled = target.clone()
    spoiled[4] = torch.nan
    again = sampling.verify_draft(spoiled, ids, draft=draft, seeds=seeds)
    for i in range(6):
        alone = sampling.verify_draft(target[i : i + 1], ids[i : i + 1], draft=draft[i : i + 1], seeds=seeds[i : i + 1])
        assert [t.item() for t in alone] == [t[i].item() for t in whole]
        if i != 4:
            assert [t[i].item() for t in again] == [t[i].item() for t in whole]
    assert (again[1][4].item(), again[2][4].item()) == (-1, False)
