"""Top-k with a stated order, which torch.topk does not give: from high to low, equal values by the lower index."""

from __future__ import annotations

import torch

SORTED = 4096  # values up to which a full sort on a CPU costs less than making and choosing keys (measured: a third)


def ordered_keys(values: torch.Tensor) -> torch.Tensor:
    """int64 keys [..., n] of float32 values, all distinct, sorting by (value, then lower index first).

    A float32's bits, with the magnitude of negative ones flipped, order like the value; they fill the upper half of the
    key and the complement of the index the lower half. NaN sorts below -inf; -0.0 equals 0.0.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0 turns -0.0 into 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = torch.where(values.isnan(), -(1 << 31), ordered)
    count = values.shape[-1]
    return (ordered << 32) + torch.arange(count - 1, -1, -1, device=values.device)


def top_ids(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices int64 [..., k] of the k largest float32 values, high to low, ties to the lower index, NaN last."""
    if values.device.type == "cpu" and values.numel() <= SORTED:
        # Stable and ascending: of equal values the lower index first, and torch sorts NaN behind every number.
        return torch.sort(torch.neg(values), dim=-1, stable=True).indices.narrow(-1, 0, k)
    keys = ordered_keys(values.contiguous())
    if k == values.shape[-1]:
        return keys.argsort(-1, descending=True)
    return keys.topk(k, -1).indices
