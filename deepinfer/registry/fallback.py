"""The explicit rule for calls that no native kernel takes: run the portable tier on the same device, or raise.

Invariant: a fallback is never silent: one warning per (device, op) with every candidate's reasons, and a counter in
`device.statistics["fallback:OP"]` that grows with each call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from deepinfer.config import logger
from deepinfer.errors import invalid
from deepinfer.hal.device import Device
from deepinfer.hal.scoped import Scoped

POLICIES = ("portable", "error")
_lock = threading.Lock()

policy: Scoped[str] = Scoped("deepinfer_fallback", "portable")


@contextlib.contextmanager
def fallback(name: str) -> Iterator[None]:
    """Inside the block (of this thread) use policy `name` for calls that no native kernel takes.

    Args:
        name: "portable" (the default: run the portable tier on the same device, one warning per op) or "error" (raise
            `UnsupportedError` with every candidate's reasons).

    Raises:
        InvalidArgument: another name.

    >>> import deepinfer, torch
    >>> with deepinfer.fallback("error"):
    ...     deepinfer.ops.norm.rms_norm(torch.ones(1, 2), torch.ones(2)).shape
    torch.Size([1, 2])
    """
    if name not in POLICIES:
        raise invalid("fallback", name, f"must be one of {POLICIES}", nearest="'portable'")
    with policy.using(name):
        yield


def note(device: Device, op: str, reasons: Sequence[str]) -> None:
    """Count one call of `op` that ran on the portable tier; the first of a device says why. Thread-safe."""
    key = f"fallback:{op}"
    with _lock:
        device.statistics[key] = device.statistics.get(key, 0) + 1
        first = device.statistics[key] == 1
    if first:
        logger.warning("%s runs %s on the portable tier: %s", device.spec, op, "; ".join(reasons) or "no native kernel")
