"""Expert-parallel communication: dispatch tokens to the ranks that hold their experts, combine the results."""

from deepinfer.ops.deep_ep.balancer import balance, imbalance, initial_placement
from deepinfer.ops.deep_ep.buffer import ExpertBuffer
from deepinfer.ops.deep_ep.geometry import Geometry, size_hint
from deepinfer.ops.deep_ep.handle import Handle
from deepinfer.ops.deep_ep.local import LocalGroup, Outcome
from deepinfer.ops.deep_ep.placement import Placement
from deepinfer.ops.deep_ep.transport import Transport, TransportFactory

__all__ = [
    "ExpertBuffer", "Geometry", "Handle", "LocalGroup", "Outcome", "Placement", "Transport", "TransportFactory",
    "balance", "imbalance", "initial_placement", "size_hint",
]
