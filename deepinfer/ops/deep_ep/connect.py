"""Who the caller is in its group, and which transport connects the group on the current device."""

from __future__ import annotations

from typing import Any

from deepinfer.errors import UnsupportedError, invalid
from deepinfer.hal import discovery
from deepinfer.hal.device import Device
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.local import LocalFactory, LocalGroup
from deepinfer.ops.deep_ep.transport import TransportFactory


def place(group: Any) -> tuple[int, int]:
    """(rank, size) of the caller in `group`."""
    if isinstance(group, LocalGroup):
        return group.rank, group.size
    rank, size = getattr(group, "rank", None), getattr(group, "size", None)
    if callable(rank) and callable(size):
        return int(rank()), int(size())
    raise invalid("deep_ep: group", type(group).__name__, "must be a torch.distributed ProcessGroup or a LocalGroup")


def choose(group: Any, geometry: Geometry, device: Device, name: str | None) -> TransportFactory:
    """The first transport, by priority, that connects `group` on `device`."""
    offered: list[TransportFactory] = [*discovery.load(device.backend).ep_transports(), LocalFactory()]
    known = sorted(offered, key=lambda factory: -factory.priority)
    named = [factory for factory in known if name in (None, factory.name)]
    if not named:
        names = ", ".join(factory.name for factory in known)
        raise invalid("deep_ep: transport", name, f"must be one that {device.spec} offers", nearest=names)
    reasons: list[str] = []
    for factory in named:
        support = factory.supports(group, geometry, device)
        if support:
            return factory
        reasons += (f"{factory.name}: {reason}" for reason in support.reasons)
    raise UnsupportedError(f"{device.spec} has no deep_ep transport for {type(group).__name__}", reasons)
