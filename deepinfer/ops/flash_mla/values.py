"""Checks of device values (lengths, indices, sinks) for `validate=True`; they read data and may synchronise."""

from __future__ import annotations

import torch

from deepinfer.errors import invalid


def no_nan(op: str, arg: str, tensor: torch.Tensor | None) -> None:
    """+-inf is legal, NaN is not."""
    if tensor is not None and bool(tensor.isnan().any()):
        raise invalid(f"{op}: {arg}[{_first(tensor.isnan())}]", float("nan"), "must not be NaN")


def within(op: str, arg: str, tensor: torch.Tensor | None, low: int, high: int, rule: str) -> None:
    """All of `tensor` in [low, high]; `rule` explains the limits ("-1 or a slot of the cache")."""
    if tensor is None:
        return
    bad = (tensor < low) | (tensor > high)
    if bool(bad.any()):
        at = _first(bad)
        value = int(tensor[tuple(map(int, at.split(",")))])
        raise invalid(f"{op}: {arg}[{at}]", value, f"must be in [{low}, {high}] ({rule})", min(max(value, low), high))


def paged(op: str, cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Lengths fit the table, and every entry that a length reaches names a block."""
    blocks, page = cache.shape[:2]
    within(op, "seq_lens", seq_lens, 0, table.shape[1] * page, "0 to max_blocks * page")
    used = torch.arange(table.shape[1], device=table.device) * page < seq_lens[:, None]
    within(op, "block_table", torch.where(used, table, 0), 0, max(blocks - 1, 0), "a block of the cache")
    if not blocks and bool(used.any()):
        raise invalid(f"{op}: kv_cache", 0, "has no blocks, but seq_lens reach into it")


def offsets(op: str, arg: str, cu: torch.Tensor, total: int) -> None:
    """cu starts at 0, never falls, and stays within `total`."""
    within(op, arg, cu, 0, total, "0 to the number of rows")
    if int(cu[0]) != 0:
        raise invalid(f"{op}: {arg}[0]", int(cu[0]), "must be 0", nearest=0)
    falls = cu[1:] < cu[:-1]
    if bool(falls.any()):
        at = int(_first(falls)) + 1
        raise invalid(f"{op}: {arg}[{at}]", int(cu[at]), "must not be less than the entry before", int(cu[at - 1]))


def slots(op: str, arg: str, indices: torch.Tensor | None, capacity: int, length: torch.Tensor | None) -> None:
    """Indices before each row's length are -1 or below `capacity`; indices [..., K], length broadcastable to [...]."""
    if indices is None:
        return
    top = indices.shape[-1]
    within(op, arg.replace("indices", "topk_length"), length, 0, top, "0 to K")
    if length is not None:
        lengths = length.reshape(*length.shape, *(1,) * (indices.ndim - 1 - length.ndim))
        used = torch.arange(top, device=indices.device) < lengths[..., None]
        indices = torch.where(used, indices, -1)
    within(op, arg, indices, -1, capacity - 1, "-1 or a slot of the cache")


def _first(bad: torch.Tensor) -> str:
    return ",".join(str(int(i)) for i in bad.nonzero()[0])
