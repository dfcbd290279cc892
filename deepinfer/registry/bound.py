"""Calls seen before with tensors at the same addresses: from the arguments straight to the launch.

A call whose results are given by the caller is decided by metadata, plain values and addresses. When all of these are
as in an earlier call, validation, aliasing and the kernel's own preparation would end as they did then, so the launch
that came out of them (`Kernel.bind`) is enqueued again. Invariants: a key holds everything those steps may look at;
launches keep no tensor alive and are used only when tensors of equal metadata lie at equal addresses; caches belong to
the device and are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from deepinfer.hal.device import Device, Stream

LIMIT = 4096
Launch = Callable[[Stream], None]
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = frozenset({type(None), str, int, float, bool, torch.dtype})


def address_key(args: Sequence[Any], out: Sequence[torch.Tensor | None]) -> tuple[Any, ...] | None:
    """What decides the call, addresses included; None for values of other classes (a tensor's address may mislead)."""
    parts: list[Any] = []
    try:
        for a in args:
            kind = a.__class__
            if kind in _PLAIN:
                parts += (kind, a)
            elif kind is _Tensor or kind is _Parameter:
                parts += (a.data_ptr(), a.shape, a.stride(), a.dtype, a.device, a.is_neg())
            else:
                return None
        for o in out:
            if o.__class__ is not _Tensor:
                return None
            parts += (o.data_ptr(), o.shape, o.stride(), o.dtype, o.device, o.is_neg())  # type: ignore[union-attr]
    except (RuntimeError, TypeError, ValueError):  # no strides or address, `out` no tuple; validation words it
        return None
    return tuple(parts)


def find(device: Device, name: str, key: tuple[Any, ...]) -> Launch | None:
    """The launch remembered under `key` for op (or pinned op) `name`."""
    table = device.bound_calls.get(name)
    found: Launch | None = None if table is None else table.get(key)
    return found


def remember(device: Device, name: str, key: tuple[Any, ...], launch: Launch) -> None:
    """Keep `launch`; a full table is emptied, which costs time, never correctness."""
    table = device.bound_calls.setdefault(name, {})
    if len(table) >= LIMIT:
        table.clear()
    table[key] = launch
