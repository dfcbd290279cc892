"""Parts that the grouped products share: reference over groups, validity, poison, sub-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deepinfer.ops.deep_gmm import data, rows
from deepinfer.registry.spec import Args

ROW_INPUTS = ("a", "a_scale", "x", "x_scale", "route_weights")


def deliver(found: torch.Tensor, out: torch.Tensor | None, owned: torch.Tensor) -> torch.Tensor:
    """`found`, or the caller's tensor with the owned rows (bool [..., rows]) replaced and all others untouched."""
    return found if out is None else out.copy_(torch.where(owned.unsqueeze(-1), found, out))


def covered(args: Args, total: int) -> torch.Tensor:
    """Rows that exactly one group owns, bool [M, 1]: what a grouped product defines."""
    return (rows.owners(args["counts"], args["starts"], total) == 1).unsqueeze(-1)


def poison(args: Args, lead: str, weights: Sequence[str], generator: torch.Generator) -> dict[str, Any]:
    """NaN in rows of no group and in weights of empty groups; garbage in the starts of empty groups."""
    total = args[lead].shape[0]
    idle = rows.owners(args["counts"], args["starts"], total) == 0
    limits = rows.bounds(args["counts"], args["starts"], total)
    empty = limits.high == limits.low
    found = dict(args)
    for name, bad in ((lead, idle), *((name, empty) for name in weights)):
        operand = (args[name], args[f"{name}_scale"])
        found[name], found[f"{name}_scale"] = data.poisoned(operand, bad)
    if args.get("route_weights") is not None:
        found["route_weights"] = args["route_weights"].masked_fill(idle, torch.nan)
    if args["starts"] is not None:
        junk = torch.randint(-(1 << 31), 1 << 31, empty.shape, generator=generator)
        found["starts"] = torch.where(empty & (args["counts"] <= 0), junk, args["starts"]).to(args["starts"].dtype)
    return found


def batch_variants(args: Args, lead: str) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """The rows of one group alone, for the first and the last group that has any."""
    total = args[lead].shape[0]
    spans = rows.host_bounds(args["counts"], args["starts"], total)
    if len(spans) < 2:
        return ()
    found: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
    for g, low, high in (spans[0], spans[-1]):
        pick = slice(low, high)
        sub = {name: args[name][pick] for name in ROW_INPUTS if args.get(name) is not None}
        counts = torch.zeros_like(args["counts"])
        counts[g] = high - low
        found.append(({**args, **sub, "counts": counts, "starts": None}, (pick,)))
    return found
