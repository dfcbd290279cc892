"""`Packed`: weights together with a second form of them that one backend's kernels prefer.

Invariant: the plain form stays inside, so that a call on another device, or one no packed kernel takes, still works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from deepinfer.errors import invalid
from deepinfer.hal.current import current_device
from deepinfer.ops.deep_gmm import operand
from deepinfer.ops.deep_gmm.operand import PAIRS, PLAIN, recipe_of
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import TensorMeta
from deepinfer.registry.kernels import candidates

OPS = ("deep_gmm.grouped_gemm", "deep_gmm.gemm")


@runtime_checkable
class PacksWeights(Protocol):
    """A kernel of an op in `OPS` that multiplies faster with weights in its own layout.

    `layout` names that layout; the kernel meets it again as `b_layout` (`w13_layout`, `w2_layout`) with the tensor
    that `pack` returned as `b_packed`, and decides in `supports` which layouts it takes.
    """

    layout: str

    def pack(self, data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> torch.Tensor | None:
        """Weights [N, K] or [G, N, K] in the kernel's layout, same device; None = the plain form is as good."""


@dataclass(frozen=True)
class Packed:
    """Weights as given (`weights`), plus `packed` in layout `layout`; "" and None where no kernel wants it."""

    weights: torch.Tensor | Quantized
    packed: torch.Tensor | None = None
    layout: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape of the weights."""
        return tuple(self.weights.shape)


Weights = torch.Tensor | Quantized | Packed
Flat = tuple[torch.Tensor, torch.Tensor | None, str]


def flatten(op: str, arg: str, value: torch.Tensor | Quantized) -> Flat:
    """(payload, scales, recipe) of an operand; anything else is refused by name."""
    if isinstance(value, torch.Tensor):
        return value, None, PLAIN
    if isinstance(value, Quantized):
        return value.data, value.scale, recipe_of(value)
    raise invalid(f"{op}: {arg}", type(value).__name__, "must be a torch.Tensor, Quantized or (weights only) Packed")


def flatten_weights(
    op: str, arg: str, value: Weights
) -> tuple[torch.Tensor, torch.Tensor | None, str, torch.Tensor | None, str]:
    """(payload, scales, recipe, packed, layout) of weights."""
    if value.__class__ is torch.Tensor:
        return value, None, PLAIN, None, ""  # type: ignore[return-value]
    if isinstance(value, Packed):
        return (*flatten(op, arg, value.weights), value.packed, value.layout)
    return (*flatten(op, arg, value), None, "")


def _check(data: torch.Tensor, scale: torch.Tensor | None, recipe: str) -> None:
    if data.ndim not in (2, 3):
        raise invalid("deep_gmm.prepack: weights", list(data.shape), "must be [N,K] or [G,N,K]")
    if all(recipe not in seconds for seconds in PAIRS.values()):
        known = tuple(second for seconds in PAIRS.values() for second in seconds)
        raise invalid("deep_gmm.prepack: weights", recipe, f"must be one of {known}", nearest=known[0])
    scales = None if scale is None else TensorMeta.of(scale)
    operand.check("deep_gmm.prepack", "weights", TensorMeta.of(data), scales, recipe, data.ndim, "[N,K] or [G,N,K]")


def pack(weights: torch.Tensor | Quantized) -> Packed:
    """Ask the current device's kernels, best first, for their layout of `weights`."""
    flat = flatten("deep_gmm.prepack", "weights", weights)
    _check(*flat)
    device = current_device()
    if flat[0].device.type != device.torch_device.type:
        raise invalid("deep_gmm.prepack: weights", str(flat[0].device), "must lie on the current device's memory",
                      nearest=str(device.torch_device))
    for op in OPS:
        for candidate in candidates(device, op):
            kernel = candidate.kernel
            packed = kernel.pack(*flat) if isinstance(kernel, PacksWeights) else None
            if packed is not None and isinstance(kernel, PacksWeights):
                return Packed(weights, packed, kernel.layout)
    return Packed(weights)
