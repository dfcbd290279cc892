"""The bfloat16 half of the equality rule: are an implementation's errors larger than the yardstick's?

Two implementations of equal quality round differently, so one of them has the larger error quantile by chance, every
other time. What is asked is therefore whether the excess is more than chance: a one-sided paired test per quantile.
The errors of both at one position of a text are a pair. Their pooled quantile is a threshold; an implementation with
the larger quantile exceeds it more often, so its surplus of exceedances, added over all positions, is positive. Were
both equally good, each position's surplus would be as likely to have the other sign: the share of random sign choices
that reach the sum is the probability of chance. docs/design/0002-conformance.md gives its power and its calibration.

Invariants: deterministic; equal errors never fail; a quantile beyond LIMIT fails whatever the chance, so that damage to
a few positions, which signs cannot tell from luck, is not lost in them.
"""

from __future__ import annotations

import math

import torch

QUANTILES = (0.5, 0.99)
CHANCE = 1e-3  # an excess that equal quality explains with less than this probability is real
LIMIT = 1.1  # times the yardstick's quantile; between equals it stayed below 1.05 in 48 random models
DRAWS, CHUNK, SEED = 20_000, 2_000, 11


def quantile(errors: torch.Tensor, share: float) -> float:
    """The smallest error that at least `share` of all do not exceed; of any number of errors."""
    flat = errors.flatten()
    return float(flat.kthvalue(max(math.ceil(share * flat.numel()), 1)).values)


def chance(found: torch.Tensor, yardstick: torch.Tensor, share: float) -> float:
    """Probability that equal quality gives `found` this surplus of errors above the pooled quantile `share`.

    found, yardstick [positions, vocab]: absolute errors against the oracle, paired.
    """
    threshold = quantile(torch.cat((found, yardstick)), share)
    surplus = ((found > threshold).sum(-1) - (yardstick > threshold).sum(-1)).double()
    generator = torch.Generator().manual_seed(SEED)
    reached = 0
    for _ in range(DRAWS // CHUNK):
        signs = torch.randint(2, (CHUNK, surplus.shape[0]), generator=generator).double() * 2 - 1
        reached += int((signs @ surplus >= surplus.sum()).sum())
    return (1 + reached) / (1 + DRAWS)


def excess(found: torch.Tensor, yardstick: torch.Tensor) -> list[str]:
    """Problems if errors `found` [positions, vocab] are larger than the yardstick's beyond chance."""
    problems = []
    if not bool(found.isfinite().all()):
        problems.append(f"{int((~found.isfinite()).sum())} errors are NaN or infinite")
    if not bool(yardstick.isfinite().all()):
        problems.append("the cpu's own errors are NaN or infinite: they allow nothing to be said")
    for share in QUANTILES:
        got, limit = (quantile(errors, share) for errors in (found, yardstick))
        if not got > limit:
            continue
        probability = chance(found, yardstick, share)
        if got > LIMIT * limit or probability < CHANCE:
            problems.append(
                f"quantile {share}: error {got:.4g} against the float32 oracle, the cpu's is {limit:.4g}; equal "
                f"quality explains this with probability {probability:.2g} (at least {CHANCE:g} is asked for)"
            )
    return problems
