"""Shared checks of op contracts. Each raises InvalidArgument naming argument, value, rule and what works."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.errors import invalid
from deepinfer.registry.call import TensorMeta

INDEX_DTYPES = (torch.int32, torch.int64)


def rank(op: str, arg: str, meta: TensorMeta, wanted: int, letters: str = "") -> None:
    """`meta` must have exactly `wanted` dimensions; `letters` shows them ("[b,h,d]")."""
    if meta.ndim != wanted:
        raise invalid(f"{op}: {arg}", list(meta.shape), f"must have {wanted} dimensions {letters}".rstrip())


def dtype(op: str, arg: str, meta: TensorMeta, allowed: Sequence[torch.dtype]) -> None:
    """`meta.dtype` must be one of `allowed`."""
    if meta.dtype not in allowed:
        names = ", ".join(str(entry) for entry in allowed)
        raise invalid(f"{op}: {arg}", str(meta.dtype), f"dtype must be one of {names}", nearest=str(allowed[0]))


def dim(op: str, arg: str, meta: TensorMeta, axis: int, wanted: int, why: str = "") -> None:
    """Dimension `axis` must be `wanted`; `why` says where that number comes from ("= h of q")."""
    if meta.shape[axis] != wanted:
        rule = f"must be {wanted} {why}".rstrip()
        raise invalid(f"{op}: {arg}.shape[{axis}]", meta.shape[axis], rule, nearest=wanted)


def shape(op: str, arg: str, meta: TensorMeta, wanted: Sequence[int], letters: str = "") -> None:
    """The whole shape must be `wanted`."""
    rank(op, arg, meta, len(wanted), letters)
    if tuple(meta.shape) != tuple(wanted):
        raise invalid(f"{op}: {arg}", list(meta.shape), f"shape must be {list(wanted)} {letters}".rstrip())


def at_least(op: str, arg: str, value: int | float, low: int | float) -> None:
    """A plain number must be >= `low`."""
    if not value >= low:
        raise invalid(f"{op}: {arg}", value, f"must be >= {low}", nearest=low)


def between(op: str, arg: str, value: int, low: int, high: int) -> None:
    """A plain number must lie in [low, high]."""
    if not low <= value <= high:
        raise invalid(f"{op}: {arg}", value, f"must be in [{low}, {high}]", nearest=min(max(value, low), high))


def last_contiguous(op: str, arg: str, meta: TensorMeta) -> None:
    """The last dimension must have stride 1 (a size-1 dimension's stride does not matter)."""
    if meta.ndim and meta.shape[-1] > 1 and meta.stride[-1] != 1:
        raise invalid(f"{op}: {arg}.stride(-1)", meta.stride[-1], "must be 1; pass .contiguous()", nearest=1)


def number(op: str, arg: str, value: object) -> float:
    """`value` as a float for the canonical call; anything but a real number is refused by name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{op}: {arg}", value, "must be a number", nearest=1.0)
    try:
        return float(value)
    except OverflowError:
        raise invalid(f"{op}: {arg}", value, "must fit a float64") from None


def integer(op: str, arg: str, value: object) -> int:
    """`value` as an int for the canonical call; bools and floats are refused by name."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{op}: {arg}", value, "must be an integer", nearest=1)
    if not -(1 << 63) <= value < 1 << 63:
        raise invalid(f"{op}: {arg}", value, "must fit 64 bits")
    return int(value)
