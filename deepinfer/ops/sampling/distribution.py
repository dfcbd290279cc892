"""Temperature, top-k, top-p and min-p on adjusted logits: which tokens stay, and with what weight.

The rules, in this order, per row (parameters are values on the device; None is the identity for all rows):
temperature divides; <= 0 or NaN means arg-max. top-k keeps the k largest logits, ties to the lower id (k <= 0: all).
top-p keeps, among those, the shortest prefix of that order whose share of the mass reaches p (p >= 1 or NaN: all;
p <= 0: one token). min-p drops tokens with less than min_p times the largest probability (<= 0 or NaN: none; values
above 1 count as 1). At least the largest token stays. Nothing here reads the memory of an accelerator on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepinfer.ops.moe.ranking import ordered_keys
from deepinfer.registry.spec import Args


@dataclass(frozen=True)
class Scaled:
    """Adjusted logits as temperature sees them.

    Attributes:
        x: [n, V] float32 adjusted logits; rows that are not valid hold zeros.
        log: [n, V] float32 (x - max) / temperature; arg-max rows use temperature 1.
        valid: [n] bool; false where a NaN or +inf is among the allowed tokens, or no token is allowed.
        greedy: [n] bool, or None when no row is.
    """

    x: torch.Tensor
    log: torch.Tensor
    valid: torch.Tensor
    greedy: torch.Tensor | None


@dataclass(frozen=True)
class Kept:
    """Candidates of each row.

    Attributes:
        ids: [n, C] token ids, or None when column = token.
        log: [n, C] float32 log-weights (not normalised), -inf where a token was cut.
    """

    ids: torch.Tensor | None
    log: torch.Tensor


Candidates = Callable[[Scaled], "int | torch.Tensor | None"]
"""How many of the largest tokens `cut` must look at, given the scaled logits, or their ids [n, C] from high to low
(ties to the lower id); None: no order is needed."""


def all_candidates(args: Args) -> Candidates:
    """The answer that needs no look at values: the whole vocabulary wherever top-k or top-p is given."""
    ordered = args["top_k"] is not None or args["top_p"] is not None
    return lambda scaled: scaled.x.shape[1] if ordered else None


def largest(x: torch.Tensor) -> torch.Tensor:
    """Row maxima [n, 1], NaN where a row holds one, -inf for an empty vocabulary."""
    return x.amax(1, keepdim=True) if x.shape[1] else x.new_full((x.shape[0], 1), -torch.inf)


def scale(x: torch.Tensor, temperature: torch.Tensor | None) -> Scaled:
    """Divide by the temperature relative to the row's maximum, so that nothing overflows."""
    top = largest(x)
    valid = top.isfinite()
    if not known_all(valid):
        x, top = torch.where(valid, x, 0.0), torch.where(valid, top, 0.0)
    shifted = x - top
    if temperature is None:
        return Scaled(x, shifted, valid[:, 0], None)
    warmth = temperature.float()
    greedy = ~(warmth > 0)
    divisor = torch.where(greedy, 1.0, warmth)[:, None]
    log = shifted / divisor
    if not known_all(divisor < torch.inf):  # -inf / inf is no number, but stays -inf here
        log = torch.where(shifted == -torch.inf, shifted, log)
    return Scaled(x, log, valid[:, 0], None if known_all(~greedy) else greedy)


def known_all(true: torch.Tensor) -> bool:
    """Whether all of it is True, looked at only in host memory, where that is free: False may be either."""
    return true.device.type == "cpu" and bool(true.all())


def ordered(x: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest values of each row of x [n, V], from high to low, ties to the lower id."""
    keys = ordered_keys(x)
    return keys.argsort(1, descending=True) if count >= x.shape[1] else keys.topk(count, 1).indices


def cut(scaled: Scaled, args: Args, candidates: int | torch.Tensor | None) -> Kept:
    """Apply top-k, top-p and min-p.

    `candidates` is how many of the largest tokens to look at, or which ones in order: V is always right; fewer is right
    only if no row keeps more (the caller knows). None: neither top-k nor top-p is asked for.
    """
    ids, log = None, scaled.log
    if candidates is not None and log.shape[1]:
        ids = ordered(scaled.x, candidates) if isinstance(candidates, int) else candidates
        total = scaled.log.exp().sum(1, dtype=torch.float64)
        log = log.gather(1, ids)
        log = _top_p(log, *_top_k(log, args["top_k"], total, scaled.log.shape[1]), args["top_p"])
    if args["min_p"] is not None:
        floor = torch.where(args["min_p"] > 0, args["min_p"].float(), 0.0).clamp(max=1.0)[:, None]
        log = log.masked_fill(log.exp() < floor, -torch.inf)
    return Kept(ids, log)


def _top_k(
    log: torch.Tensor, top_k: torch.Tensor | None, total: torch.Tensor, vocab: int
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(which columns of the sorted candidates stay, mass of what stays).

    A k of the vocabulary's size or more keeps the total, candidates that were not looked at included.
    """
    if top_k is None:
        return None, total
    limit = torch.where(top_k > 0, top_k.long(), 1 << 62)[:, None]
    kept = torch.arange(log.shape[1], device=log.device)[None] < limit
    mass = torch.where(kept, log.exp(), 0.0).sum(1, dtype=torch.float64)
    return kept, torch.where((top_k > 0) & (top_k < vocab), mass, total)


def _top_p(
    log: torch.Tensor, kept: torch.Tensor | None, mass: torch.Tensor, top_p: torch.Tensor | None
) -> torch.Tensor:
    """Cut the sorted candidates where the mass before them reaches p; the first one stays."""
    if kept is not None:
        log = log.masked_fill(~kept, -torch.inf)
    if top_p is None:
        return log
    weights = log.exp().double()
    before = weights.cumsum(1) - weights
    off = ~(top_p < 1)
    limit = torch.where(off, torch.inf, top_p.double() * mass)[:, None]
    reached = before >= limit
    reached[:, 0] = False
    return log.masked_fill(reached, -torch.inf)


def normalised(kept: Kept) -> torch.Tensor:
    """Log-probabilities of the candidates [n, C]; a row with nothing kept stays -inf."""
    total = kept.log.exp().sum(1, keepdim=True, dtype=torch.float64).log().float()
    return torch.where(kept.log == -torch.inf, kept.log, kept.log - total)
