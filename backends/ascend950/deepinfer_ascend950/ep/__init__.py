"""Deep EP over peer-mapped memory: the transport of `ExpertBuffer` on devices that write each other's memory."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def transports() -> Sequence[Any]:
    """Transports of this backend, best first."""
    return (import_module("deepinfer_ascend950.ep.transport").PeerFactory(),)
