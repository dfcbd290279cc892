"""Deep EP transports of the CPU backend."""

from __future__ import annotations

from deepinfer.ops.deep_ep.transport import TransportFactory
from deepinfer_cpu.ep.shared import SharedFactory

TRANSPORTS: tuple[TransportFactory, ...] = (SharedFactory(),)
