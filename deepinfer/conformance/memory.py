"""Tensors laid out to catch mistakes: guard bands round outputs, and the same values under other strides.

Invariant: a guarded buffer starts full of one byte pattern, so an element that still holds it was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from deepinfer.conformance.compare import bits
from deepinfer.hal.device import Device

GUARD = 512  # bytes; a multiple of every alignment a kernel asks for
# 0xFF reads as NaN in every float format and as -1 in integers; 0xA5 as an ordinary small number.
PATTERNS = (0xA5, 0xFF)


class Guarded:
    """A contiguous tensor inside a larger buffer whose every byte was `pattern`."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: torch.dtype, pattern: int) -> None:
        count = 1
        for size in shape:
            count *= size
        nbytes = count * dtype.itemsize
        self.pattern = pattern
        self.buffer = device.empty((nbytes + 2 * GUARD,), torch.uint8).fill_(pattern)
        self.tensor = self.buffer[GUARD : GUARD + nbytes].view(dtype).view(shape)

    def problems(self, name: str) -> list[str]:
        """Bytes of the bands that changed."""
        data = self.buffer.cpu()
        found: list[str] = []
        for label, band, origin in (("before", data[:GUARD], GUARD), ("after", data[-GUARD:], 0)):
            hit = (band != self.pattern).nonzero().flatten()
            if hit.numel():
                offset = int(hit[0]) - origin if label == "before" else int(hit[0])
                found.append(f"{name}: wrote {hit.numel()} bytes {label} the tensor, first at byte offset {offset}")
        return found

    def unwritten(self, name: str, outside: torch.Tensor) -> list[str]:
        """Elements of mask `outside` (not defined by the op) that lost their bytes."""
        changed = (bits(self.tensor) != self.pattern).any(-1) & outside
        if not bool(changed.any()):
            return []
        first = [int(i) for i in changed.nonzero()[0]]
        return [f"{name}: {int(changed.sum())} elements outside the valid region were written, first at {first}"]


def guarded_copy(device: Device, tensor: torch.Tensor, pattern: int) -> Guarded:
    """A guarded tensor with the values of `tensor` (for arguments the op writes in place)."""
    holder = Guarded(device, tuple(tensor.shape), tensor.dtype, pattern)
    holder.tensor.copy_(tensor)
    return holder


def _garbage(shape: list[int], like: torch.Tensor) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    fill = 0 if like.dtype is torch.bool else 0xFF
    raw = torch.full((count * like.element_size(),), fill, dtype=torch.uint8, device=like.device)
    return raw.view(like.dtype).view(shape)


def padded(tensor: torch.Tensor) -> torch.Tensor | None:
    """Outer dimensions one larger, the last one 64 bytes longer, then sliced back; garbage in the gaps."""
    if tensor.ndim == 0:
        return None
    extra = max(64 // tensor.element_size(), 1)
    shape = [size + 1 for size in tensor.shape[:-1]] + [tensor.shape[-1] + extra]
    view = _garbage(shape, tensor)[tuple(slice(0, size) for size in tensor.shape)]
    return view.copy_(tensor)


def shifted(tensor: torch.Tensor) -> torch.Tensor | None:
    """Dense, but one element behind an aligned address."""
    if not tensor.numel() or not tensor.is_contiguous():
        return None
    return _garbage([tensor.numel() + 1], tensor)[1:].view(tensor.shape).copy_(tensor)


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors with elements lie in one allocation."""
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def every_second(tensor: torch.Tensor) -> torch.Tensor | None:
    """Stride 2 in the last dimension, garbage between."""
    if tensor.ndim == 0 or tensor.shape[-1] < 2:
        return None
    view = _garbage([*tensor.shape[:-1], tensor.shape[-1] * 2], tensor)[..., ::2]
    return view.copy_(tensor)


def transposed(tensor: torch.Tensor) -> torch.Tensor | None:
    """The last two dimensions stored the other way round."""
    if tensor.ndim < 2 or min(tensor.shape[-2:]) < 2:
        return None
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def outer_swapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Dense rows, but the first dimension and the last but one stored the other way round."""
    if tensor.ndim < 3 or min(tensor.shape[0], tensor.shape[-2]) < 2:
        return None
    return tensor.transpose(0, -2).contiguous().transpose(0, -2)


def odd_unit_strides(tensor: torch.Tensor) -> torch.Tensor | None:
    """Size-1 dimensions get a meaningless stride, which every op must ignore."""
    if 1 not in tensor.shape or not tensor.is_contiguous():
        return None
    strides = [7919 if size == 1 else step for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    return tensor.as_strided(tensor.shape, strides)


def other_index_dtype(tensor: torch.Tensor) -> torch.Tensor | None:
    """int32 <-> int64, where no value is lost."""
    if tensor.dtype is torch.int32:
        return tensor.long()
    if tensor.dtype is torch.int64 and (tensor.numel() == 0 or int(tensor.abs().max()) < 2**31):
        return tensor.int()
    return None


Relayout = Callable[[torch.Tensor], "torch.Tensor | None"]
MUST_TAKE: dict[str, Relayout] = {"unit strides": odd_unit_strides}
JOINT: dict[str, Relayout] = {
    "padded": padded, "one element off": shifted, "outer dimensions swapped": outer_swapped,
    "index dtype": other_index_dtype,
}
LAST: dict[str, Relayout] = {"step2": every_second, "transposed": transposed}  # often refused for payloads


def variants(args: dict[str, Any], makers: dict[str, Relayout]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(argument, layout name, tensor) for every tensor argument and layout that applies."""
    for name, value in args.items():
        if isinstance(value, torch.Tensor):
            for label, make in makers.items():
                changed = make(value)
                if changed is not None:
                    yield name, label, changed
