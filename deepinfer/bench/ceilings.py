"""What a device can do at most: bytes per second and operations per second, measured once or given in a file.

A file is JSON: {"bandwidth": bytes/s, "flops": {"bf16": op/s, "f32": ..., "fp8": ...}, "source": "where from"}.
Invariant: a share of the roofline is only stated against a ceiling that was measured here or given on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepinfer.bench.timing import measure
from deepinfer.errors import InvalidArgument
from deepinfer.hal.device import Device
from deepinfer.hal.types import DriverKind
from deepinfer.registry import Cost

UNITS: dict[torch.dtype, str] = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "bf16", torch.float8_e4m3fn: "fp8",
}
HOST_COPY, DEVICE_COPY = 1 << 27, 1 << 32
HOST_SIZE, DEVICE_SIZE = 1024, 8192


@dataclass(frozen=True)
class Ceilings:
    """bandwidth in bytes/s; flops in operations/s by unit ("bf16", "f32", "fp8")."""

    bandwidth: float
    flops: Mapping[str, float]
    source: str

    def floor_us(self, cost: Cost, unit: str) -> float:
        """The least time `cost` can take, in microseconds."""
        rate = self.flops.get(unit) or self.flops["bf16"]
        return max(cost.flops / rate, cost.nbytes / self.bandwidth) * 1e6


def load(path: str | Path) -> Ceilings:
    """Ceilings from a JSON file; InvalidArgument names file and field."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        flops = {str(name): float(value) for name, value in data["flops"].items()}
        found = Ceilings(float(data["bandwidth"]), flops, str(data["source"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"ceilings {path}: must hold bandwidth, flops and source: {error!r}") from error
    if not found.bandwidth > 0 or not found.flops.get("bf16", 0) > 0 or min(found.flops.values()) <= 0:
        raise InvalidArgument(f"ceilings {path}: bandwidth and every rate must be positive, and bf16 must be given")
    return found


def measured(device: Device, state: str = "sust") -> Ceilings:
    """One large copy (bytes read plus bytes written) and one large matrix product per unit, through torch."""
    host = device.props.kind is not DriverKind.HARDWARE
    size = HOST_SIZE if host else DEVICE_SIZE
    flops = {"bf16": _product(device, size, torch.bfloat16, state), "f32": _product(device, size, torch.float32, state)}
    if host:  # a processor without a bf16 unit multiplies bf16 in f32, which is then its ceiling
        flops["bf16"] = max(flops.values())
    fp8 = None if host else _scaled_product(device, size, state)
    if fp8 is not None:
        flops["fp8"] = fp8
    return Ceilings(_copy(device, HOST_COPY if host else DEVICE_COPY, state), flops, "measured")


def _copy(device: Device, nbytes: int, state: str) -> float:
    source, target = device.empty((nbytes,), torch.uint8).fill_(1), device.empty((nbytes,), torch.uint8)
    return 2.0 * nbytes / _seconds(device, lambda: target.copy_(source), state)


def _product(device: Device, size: int, dtype: torch.dtype, state: str) -> float:
    a, b = (torch.randn(size, size).to(dtype).to(device.torch_device) for _ in "ab")
    out = device.empty((size, size), dtype)
    return 2.0 * size**3 / _seconds(device, lambda: torch.mm(a, b.t(), out=out), state)


def _scaled_product(device: Device, size: int, state: str) -> float | None:
    """fp8 rate through torch._scaled_mm, None where this build or device has none (bf16 then serves as the unit)."""
    a, b = (torch.randn(size, size).to(torch.float8_e4m3fn).to(device.torch_device) for _ in "ab")
    one = torch.ones((), device=device.torch_device)
    product: Callable[[], Any] = lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)  # noqa: E731
    try:
        product()
    except RuntimeError:
        return None
    return 2.0 * size**3 / _seconds(device, product, state)


def _seconds(device: Device, call: Callable[[], Any], state: str) -> float:
    """Median on a device with a timer; the best call on a host, whose ceiling other work only hides."""
    sample = measure(device, [call], state)
    return sample.quantile(0.0 if sample.clock == "wall" else 0.5) * 1e-6


def unit_of(args: Mapping[str, Any]) -> str:
    """The arithmetic unit of a call: that of its first floating-point tensor (the activations by convention)."""
    for value in args.values():
        if isinstance(value, torch.Tensor) and value.dtype in UNITS:
            return UNITS[value.dtype]
    return "f32"
