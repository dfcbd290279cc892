"""Deep EP transports of the CPU backend."""

from __future__ import annotations

import os
from importlib import import_module

from deepinfer.ops.deep_ep.transport import TransportFactory


def _transports() -> tuple[TransportFactory, ...]:
    """Shared memory needs flock and mmap of a POSIX system; elsewhere LocalGroup is what there is."""
    if os.name != "posix":
        return ()
    return (import_module("deepinfer_cpu.ep.shared").SharedFactory(),)


TRANSPORTS: tuple[TransportFactory, ...] = _transports()
