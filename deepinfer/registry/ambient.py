"""Keeps what a program sets round a call out of the call: autocast and the default device of new tensors.

An op's dtypes and devices are those of its arguments; torch operations inside the portable tier and host kernels would
follow the surroundings and give other digits or tensors in the wrong memory. Both settings belong to the thread, so
they can be taken back for one call; the default dtype belongs to the process, so code of ops names every dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_modes = torch._C._len_torch_function_stack  # a default device is one of these modes: no mode, no default device
_some_autocast, _autocast = torch._C._is_any_autocast_enabled, torch.is_autocast_enabled


def disturbs(device: torch.device) -> bool:
    """Whether the surroundings would change what torch does inside an op on `device`."""
    if not (_modes() or _some_autocast()):  # most calls; asked first because every call of every op asks
        return False
    return _autocast(device.type) or (_modes() > 0 and torch.get_default_device().type != "cpu")


@contextlib.contextmanager
def plain(device: torch.device) -> Iterator[None]:
    """Inside the block torch behaves as if nothing had been set, in this thread."""
    with torch.autocast(device.type, enabled=False), torch.device("cpu"):
        yield
