"""Statistics that the sampling tests share: Pearson's chi-square with a limit far out in its tail."""

from __future__ import annotations

import math

import torch


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> tuple[float, float]:
    """(statistic, limit) of observed counts against probabilities; cells that expect fewer than 5 are pooled.

    The limit is 4.5 standard deviations of the statistic above its mean: about one false alarm in 10^5.
    """
    counts, law = counts.double().flatten(), law.double().flatten()
    expected = law * counts.sum() / law.sum()
    small = expected < 5
    observed = torch.cat((counts[~small], counts[small].sum()[None]))
    expected = torch.cat((expected[~small], expected[small].sum()[None]))
    if expected[-1] == 0:
        if observed[-1] != 0:
            return math.inf, 0.0
        observed, expected = observed[:-1], expected[:-1]
    freedom = max(len(expected) - 1, 1)
    return float(((observed - expected) ** 2 / expected).sum()), freedom + 4.5 * math.sqrt(2 * freedom) + 4
