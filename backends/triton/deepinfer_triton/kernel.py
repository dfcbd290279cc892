"""Base class of the kernels in this package: which devices they run on and how plan and launch fit together."""

from __future__ import annotations

from importlib.util import find_spec

from deepinfer.hal import DeviceProps, Support
from deepinfer.registry import Call, Kernel, TensorMeta
from deepinfer_triton.compile import ARCHITECTURES

GRID_LIMIT = 2**31 - 1  # blocks along x; kernels use no other dimension


class TritonKernel(Kernel):
    """A small op in Triton. Subclasses add their own reasons in `refuse`."""

    priority = 5

    def supports(self, props: DeviceProps, call: Call) -> Support:
        reasons = self.refuse(call)
        if props.arch not in ARCHITECTURES:
            reasons.append(f"Triton compiles for {', '.join(ARCHITECTURES)} here, the device is {props.arch}")
        if find_spec("triton") is None:
            reasons.append("triton is not installed (pip install 'deepinfer-cuda[triton]')")
        return Support(tuple(reasons))

    def refuse(self, call: Call) -> list[str]:
        """Why the call's shapes, dtypes or strides do not fit; empty = they do."""
        return []


def aligned(**metas: TensorMeta) -> frozenset[str]:
    """Names of the pointer arguments whose tensors lie on 16-byte boundaries."""
    return frozenset(name for name, meta in metas.items() if meta.aligned)


def multiples(**values: int) -> frozenset[str]:
    """Names of the integer arguments that are multiples of 16."""
    return frozenset(name for name, value in values.items() if value % 16 == 0)


def next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def rows_view(meta: TensorMeta) -> tuple[int, int] | None:
    """(rows, row stride) when the leading dimensions collapse to one with unit stride inside rows, else None."""
    if meta.ndim == 0 or (meta.shape[-1] > 1 and meta.stride[-1] != 1):
        return None
    leading = [(size, stride) for size, stride in zip(meta.shape[:-1], meta.stride[:-1], strict=True) if size != 1]
    if not leading:
        return 1, 0
    rows, step = 1, leading[-1][1]
    for size, stride in reversed(leading):
        if stride != step * rows:
            return None
        rows *= size
    return rows, step
