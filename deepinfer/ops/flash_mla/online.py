"""Softmax over keys that arrive in blocks: what every portable attention of this family accumulates into.

Invariants: float32 throughout; -inf is the only mark for "no key", so logits of any finite size work; memory is
groups * rows * (d_v + block), never rows * all keys. A non-finite value reaches exactly the rows that see its key.
"""

from __future__ import annotations

import math

import torch

BUDGET = 1 << 20  # floats that one gathered block of keys and its logits may take
KEY_BLOCK = 256


class OnlineSoftmax:
    """Running maximum, sum and weighted values of `groups` x `rows` queries; keys are shared inside a group."""

    def __init__(self, groups: int, rows: int, d_v: int, device: torch.device) -> None:
        self.top = torch.full((groups, rows), -torch.inf, dtype=torch.float32, device=device)
        self.total = torch.zeros((groups, rows), dtype=torch.float32, device=device)
        self.out = torch.zeros((groups, rows, d_v), dtype=torch.float32, device=device)

    def add(self, logits: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None) -> None:
        """Take in a block of keys.

        Args:
            logits: [groups, rows, c] scaled; overwritten.
            values: [groups, c, d_v]; rows that no query of the group sees must be finite (zero).
            seen: bool, broadcastable to logits; False = the key is not there for that row. None = all are there.
        """
        if seen is not None:
            logits.masked_fill_(~seen, -torch.inf)
        top = torch.maximum(self.top, logits.amax(-1))
        base = torch.where(top == -torch.inf, torch.zeros_like(top), top)
        weights = logits.sub_(base[..., None]).exp_()
        keep = (self.top - base).exp_()
        self.total = torch.addcmul(weights.sum(-1), self.total, keep)
        self.out = _mix(weights, values, seen).addcmul_(self.out, keep[..., None])
        self.top = top

    def result(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(out [g, r, d_v], lse [g, r], max logit [g, r]); rows in which no key has weight are 0, -inf, -inf."""
        empty = self.top == -torch.inf
        out = torch.where(empty[..., None], 0.0, self.out / self.total[..., None])
        lse = torch.where(empty, self.top, self.top + self.total.log())
        return out, lse, self.top


def on_host(x: torch.Tensor) -> bool:
    """Whether values may be looked at: reading them waits for no device."""
    return x.device.type == "cpu"


def known_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite, looked at only where that is free: True is a fact, False may be either."""
    return on_host(x) and math.isfinite(float(x.sum()))  # one pass; NaN and infinities survive a sum


def _mix(weights: torch.Tensor, values: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """weights @ values, where a key that a row does not see adds nothing to it even if its value is NaN or inf."""
    mixed = torch.bmm(weights, values)
    if seen is None or seen.shape[-2] == 1 or known_finite(mixed):  # the same keys for all, and unseen ones are zero
        return mixed
    seen = seen.expand_as(weights)
    mixed = torch.bmm(weights, values.masked_fill(~values.isfinite(), 0.0))
    positive = (weights > 0).float()
    up = torch.bmm(positive, (values == torch.inf).float()) > 0
    down = torch.bmm(positive, (values == -torch.inf).float()) > 0
    lost = torch.bmm(seen.float(), values.isnan().float()) + torch.bmm(
        (seen & (weights == 0)).float(), values.isinf().float()
    )
    mixed = torch.where(up, mixed + torch.inf, mixed)
    mixed = torch.where(down, mixed - torch.inf, mixed)
    return torch.where(lost > 0, torch.full_like(mixed, torch.nan), mixed)


def sink_share(lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(sink - lse)) for lse [..., h]; 1 where lse is -inf, so that an all-zero row stays zero."""
    return torch.where(lse == -torch.inf, torch.ones_like(lse), torch.sigmoid(lse - sink))


def group_step(rows: int, keys: int, width: int) -> int:
    """How many groups to process together so that a block of keys and its logits stay inside BUDGET."""
    block = min(max(keys, 1), KEY_BLOCK)
    return max(1, BUDGET // (block * (2 * width + 2 * rows)))
