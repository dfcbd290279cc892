"""What a request does to its logits before the distribution is cut: bias, penalties, banned ids, token mask.

Shared by the specs of this family. Ids that are negative or >= vocabulary are ignored wherever they stand.
"""

from __future__ import annotations

import torch

from deepinfer.registry.spec import Args


def adjusted(args: Args) -> torch.Tensor:
    """float32 logits [n, V] after bias, penalties, bans and mask; a new tensor unless nothing changes."""
    x: torch.Tensor = args["logits"].float()
    if args["bias_ids"] is not None:
        x = add_bias(x, args["bias_ids"], args["bias_values"])
    if args["history"] is not None:
        x = penalise(x, args)
    if args["banned_ids"] is not None:
        x = x.masked_fill(hits(args["banned_ids"], x.shape) > 0, -torch.inf)
    if args["mask"] is not None:
        x = x.masked_fill(~allowed(args["mask"], args["row_map"], x.shape), -torch.inf)
    return x


def add_bias(x: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """x[row, id] += value; duplicates add up."""
    inside = (ids >= 0) & (ids < x.shape[1])
    if x.shape[1] == 0:
        return x
    places = ids.clamp(0, x.shape[1] - 1).long()
    return x.scatter_add(1, places, torch.where(inside, values.float(), 0.0))


def hits(ids: torch.Tensor, shape: torch.Size, counted: torch.Tensor | None = None) -> torch.Tensor:
    """How often each token occurs among ids [n, c], int32 [n, V]; only where `counted` [n, c] is true."""
    found = torch.zeros(shape, dtype=torch.int32, device=ids.device)
    if shape[1] == 0:
        return found
    inside = (ids >= 0) & (ids < shape[1])
    inside = inside if counted is None else inside & counted
    return found.scatter_add_(1, ids.clamp(0, shape[1] - 1).long(), inside.to(torch.int32))


def penalise(x: torch.Tensor, args: Args) -> torch.Tensor:
    """Repetition penalty on everything seen, frequency and presence penalties on what was generated."""
    history, repetition = args["history"], args["repetition"]
    if repetition is not None:
        seen = hits(history, x.shape) > 0
        factor = torch.where(repetition > 0, repetition.float(), 1.0)[:, None]
        x = torch.where(seen, torch.where(x > 0, x / factor, x * factor), x)
    if args["frequency"] is None and args["presence"] is None:
        return x
    generated = None
    if args["prompt_lens"] is not None:
        generated = torch.arange(history.shape[1], device=x.device)[None] >= args["prompt_lens"][:, None]
    counts = hits(history, x.shape, generated)
    if args["frequency"] is not None:
        x = torch.where(counts > 0, x - args["frequency"].float()[:, None] * counts, x)
    if args["presence"] is not None:
        x = torch.where(counts > 0, x - args["presence"].float()[:, None], x)
    return x


def allowed(mask: torch.Tensor, row_map: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
    """Boolean [n, V]: bit v % 32 of word v // 32 of the row's mask; a row whose map entry names no mask allows all."""
    bits = torch.arange(32, device=mask.device, dtype=torch.int32)
    table = (mask[:, :, None] >> bits & 1).flatten(1)[:, : shape[1]].bool()
    if row_map is None:
        return table
    named = (row_map >= 0) & (row_map < mask.shape[0])
    if mask.shape[0] == 0:
        return torch.ones(shape, dtype=torch.bool, device=mask.device)
    return table[row_map.clamp(0, mask.shape[0] - 1).long()] | ~named[:, None]
