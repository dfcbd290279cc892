"""Finds where a step waits for the device, because a graph of such a step would repeat yesterday's answer.

A captured graph holds device work alone: a value that the host read while capturing is frozen in it. A runtime notices
that only in the middle of a capture, and torch before 2.12 does not recover from a capture that broke off
(`CUDAGraph.capture_end` leaves its allocator in the capturing state). So a step is watched before it is captured.

Invariant: this watches the calling thread alone and changes nothing that it sees.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Ops whose result, or its size, is known to the host only after the device has finished.
READERS = frozenset({
    "_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "nonzero_numpy",
    "unique_consecutive", "unique_dim", "_unique", "_unique2",
})  # fmt: skip
COPIES = frozenset({"_to_copy", "copy_", "to"})
SHOWN = 5


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not annotated
    """Context manager; afterwards `found` lists what read device values, each with the source line that asked."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        reason = _reads(func, args, given)
        if reason and len(self.found) < SHOWN:
            shown = f"{_caller()} {reason}"
            if shown not in self.found:
                self.found.append(shown)
        return func(*args, **given)


def _reads(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Why the call makes the host wait for the device, or "" when it does not."""
    packet = getattr(func, "overloadpacket", func)
    name = str(getattr(packet, "__name__", packet))
    if name in READERS or (name == "where" and len(args) == 1):
        return f"reads a value on the host ({name})"
    if name == "repeat_interleave" and kwargs.get("output_size") is None and _ragged(args):
        return "reads the size of its result on the host (repeat_interleave without output_size)"
    if name in ("index", "index_put", "index_put_") and any(_mask(entry) for entry in args[1]):
        return f"reads the size of its result on the host ({name} with a mask)"
    if name in COPIES:
        return _crossing(name, args, kwargs)
    return ""


def _ragged(args: tuple[Any, ...]) -> bool:
    """Whether the repeats of `repeat_interleave` are a tensor: their sum is the result's size."""
    return len(args) == 1 or isinstance(args[1], torch.Tensor)


def _mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _crossing(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A copy between the host and another device."""
    source = args[1] if name == "copy_" else args[0]
    if name == "copy_":
        target = args[0].device
    else:
        wanted = kwargs.get("device")
        target = source.device if wanted is None else torch.device(wanted)
    if not isinstance(source, torch.Tensor) or "cpu" not in (source.device.type, target.type):
        return ""
    if source.device.type == target.type:
        return ""
    return f"copies between {source.device.type} and {target.type} ({name})"


def _caller() -> str:
    """file:line of the innermost frame that is neither torch's nor this module's."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        if frame.filename != __file__ and "/torch/" not in frame.filename and not frame.filename.startswith("<"):
            path = frame.filename.replace("\\", "/").split("/")
            start = next((i for i, part in enumerate(path) if part.startswith("deepinfer")), len(path) - 1)
            return f"{'/'.join(path[start:])}:{frame.lineno}"
    return "?"
