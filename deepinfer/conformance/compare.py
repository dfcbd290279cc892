"""When two tensors count as equal: the rule of the op contracts, in one place.

Infinities and NaNs must stand at the same places; each element passes by absolute or relative difference; all
together must point the same way (1 - 2*sum(ab)/sum(a^2+b^2)). `exact` asks for equal bits. Everything in float64.
Where the spec derives a `rounding` error for an element, the difference may exceed the tolerance by that much, and the
element has no say in the direction.
"""

from __future__ import annotations

import torch

from deepinfer.registry.spec import Tolerance

SMALL_ENERGY = 1e-12


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the bytes of each element, [..., itemsize] uint8."""
    # A one-element view may be "contiguous" with stride 0, which view(dtype) refuses: copy into new memory.
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1)).view(torch.uint8)
    return flat.reshape(*tensor.shape, tensor.element_size())


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.double().isnan()
    return torch.zeros(tensor.shape, dtype=torch.bool)


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Boolean mask of elements whose bits differ; any two NaNs count as equal. Shapes must agree."""
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.dtype == b.dtype:
        return (bits(a) != bits(b)).any(-1) & ~(_nan(a) & _nan(b))
    wide_a, wide_b = _wide(a), _wide(b)
    return (wide_a != wide_b) & ~(_nan(wide_a) & _nan(wide_b))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _mask(mask: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    return mask.cpu().bool().broadcast_to(shape)


def _where(bad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str:
    first = tuple(int(i) for i in bad.nonzero()[0])
    got, wanted = _wide(a.detach().cpu())[first].item(), _wide(b.detach().cpu())[first].item()
    return f"{int(bad.sum())} of {bad.numel()} elements, first at {list(first)}: got {got!r}, wanted {wanted!r}"


def same_bits(name: str, a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor | None = None) -> list[str]:
    """Problems (none or one) if `a` and `b` differ in a bit inside `mask`."""
    if a.shape != b.shape:
        return [f"{name}: shape {list(a.shape)}, wanted {list(b.shape)}"]
    bad = differing(a, b) & _mask(mask, a.shape)
    return [f"{name}: bits differ in {_where(bad, a, b)}"] if bool(bad.any()) else []


def close(
    name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, mask: torch.Tensor | None = None,
    rounding: torch.Tensor | None = None,
) -> list[str]:
    """Problems if `actual` is not within `tolerance`, and `rounding` per element, of `expected` inside `mask`."""
    if tolerance.exact:
        return same_bits(name, actual, expected, mask)
    if actual.shape != expected.shape:
        return [f"{name}: shape {list(actual.shape)}, wanted {list(expected.shape)}"]
    inside = _mask(mask, actual.shape)
    a, b = actual.detach().cpu().double(), expected.detach().cpu().double()
    for label, place in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        bad = (place(a) != place(b)) & inside
        if bool(bad.any()):
            return [f"{name}: {label} at different places: {_where(bad, a, b)}"]
    finite = inside & a.isfinite()
    extra = torch.zeros(()) if rounding is None else rounding.double()
    steady = finite & (extra == 0)
    return _elementwise(name, a, b, finite, tolerance, extra) + _direction(name, a[steady], b[steady], tolerance)


def _elementwise(
    name: str, a: torch.Tensor, b: torch.Tensor, finite: torch.Tensor, tolerance: Tolerance, extra: torch.Tensor
) -> list[str]:
    diff = ((a - b).abs() - extra).clamp(min=0.0)
    fine = (diff == 0) | (diff < tolerance.abs) | (diff / (b.abs() + 1e-6) < tolerance.rel)
    bad = finite & ~fine
    if not bool(bad.any()):
        return []
    worst = float(diff[bad].max())
    return [f"{name}: off by up to {worst:.3g} (abs {tolerance.abs:g} or rel {tolerance.rel:g}) in {_where(bad, a, b)}"]


def _direction(name: str, a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance) -> list[str]:
    energy = float(a.square().sum() + b.square().sum())
    if energy < SMALL_ENERGY:
        return []
    distance = 1.0 - 2.0 * float((a * b).sum()) / energy
    if distance <= tolerance.cos:
        return []
    return [f"{name}: cosine-like distance {distance:.3g} exceeds {tolerance.cos:g}"]
