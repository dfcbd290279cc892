"""Results must not share memory with arguments or with each other: kernels read and write in any order.

Invariant: what depends on shapes and strides (extents, a result that overlaps itself) is decided once per dispatch key;
a call compares addresses only. An op lists in `OpSpec.in_place` which result may be the very same tensor as which
argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.registry.call import Call, TensorMeta
from deepinfer.registry.spec import OpSpec


def extent(meta: TensorMeta) -> int:
    """Bytes from the first to the last element, 0 for an empty tensor."""
    if meta.numel == 0:
        return 0
    steps = sum((size - 1) * step for size, step in zip(meta.shape, meta.stride, strict=True))
    return (steps + 1) * meta.dtype.itemsize


def overlaps_itself(meta: TensorMeta) -> bool:
    """Whether two elements may share an address; interleaved views that no slicing makes count as overlapping."""
    if meta.numel <= 1:
        return False
    reach = 1
    for step, size in sorted((step, size) for size, step in zip(meta.shape, meta.stride, strict=True) if size > 1):
        if step < reach:
            return True
        reach += (size - 1) * step
    return False


@dataclass(frozen=True)
class Extents:
    """Bytes covered: (position, bytes) of the tensor arguments; bytes of the caller's results; which arguments are
    written in place."""

    arguments: tuple[tuple[int, int], ...]
    results: tuple[int, ...]
    written: tuple[tuple[int, int], ...]

    @staticmethod
    def of(spec: OpSpec, call: Call) -> Extents:
        metas = [(at, param, call.args[param.name]) for at, param in enumerate(spec.params)]
        found = [(at, param, extent(meta)) for at, param, meta in metas if isinstance(meta, TensorMeta)]
        return Extents(
            tuple((at, size) for at, _, size in found),
            tuple(extent(meta) for meta in call.out or ()),
            tuple((at, size) for at, param, size in found if param.mutated),
        )


def check_written(spec: OpSpec, call: Call) -> None:
    """Tensors that are written must have one address per element."""
    written = [(f"out[{name}]", meta) for name, meta in zip(spec.returns, call.out or (), strict=bool(call.out))]
    written += [(param.name, call.args[param.name]) for param in spec.params if param.mutated]
    for name, meta in written:
        if isinstance(meta, TensorMeta) and overlaps_itself(meta):
            rule = "is written, so its elements must not overlap; pass a contiguous tensor"
            raise invalid(f"{spec.name}: {name}.stride", list(meta.stride), rule)


def check_call(spec: OpSpec, extents: Extents, args: Sequence[Any], out: Sequence[torch.Tensor | None]) -> None:
    """Raise InvalidArgument when a result or a parameter written in place shares memory with anything else."""
    spans = [(args[at].data_ptr(), size, at) for at, size in extents.arguments]
    for at, size in extents.written:
        low = args[at].data_ptr()
        for start, length, other in spans:
            if start < low + size and low < start + length and at != other:
                _judge(spec, spec.params[at].name, args[at], spec.params[other].name, args[other])
    done: list[tuple[int, int, int]] = []
    for index, (tensor, size) in enumerate(zip(out, extents.results, strict=False)):
        if tensor is None:
            continue
        low = tensor.data_ptr()
        for start, length, other in spans:
            if start < low + size and low < start + length:
                _judge(spec, spec.returns[index], tensor, spec.params[other].name, args[other])
        for start, length, other in done:
            if start < low + size and low < start + length:
                _judge(spec, spec.returns[index], tensor, f"out[{spec.returns[other]}]", out[other])
        done.append((low, size, index))


def _judge(spec: OpSpec, mine: str, target: torch.Tensor, other: str, tensor: Any) -> None:
    if ((mine, other) in spec.in_place and _same(target, tensor)) or disjoint(target, tensor):
        return
    shown = f"out[{mine}]" if mine in spec.returns else mine
    raise invalid(f"{spec.name}: {shown}", f"a tensor at {target.data_ptr():#x}", f"must not share memory with {other}")


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    place = a.data_ptr() == b.data_ptr() and a.dtype == b.dtype
    return place and a.shape == b.shape and a.stride() == b.stride()


def disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether both are columns of one buffer (rows a common pitch apart) that do not meet."""
    gap = b.data_ptr() - a.data_ptr()
    pitches = {
        step * t.element_size() for t in (a, b) for n, step in zip(t.shape, t.stride(), strict=True) if n > 1 and step
    }
    return any(_apart(a, b, gap, pitch) for pitch in pitches)


def _apart(a: torch.Tensor, b: torch.Tensor, gap: int, pitch: int) -> bool:
    runs = _run(a, pitch), _run(b, pitch)
    if None in runs:
        return False
    offset = gap % pitch
    return offset >= (runs[0] or 0) and offset + (runs[1] or 0) <= pitch


def _run(t: torch.Tensor, pitch: int) -> int | None:
    """Bytes that one row covers when rows are `pitch` apart, None when `t` has no such rows."""
    covered = t.element_size()
    for size, step in zip(t.shape, t.stride(), strict=True):
        nbytes = step * t.element_size()
        if size > 1 and nbytes < pitch:
            covered += (size - 1) * nbytes
        elif size > 1 and nbytes % pitch:
            return None
    return covered
